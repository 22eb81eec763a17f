//! The chain of owners of a machine, up to its Cluster.

use kube::Client;
use kube::api::ObjectMeta;

use capcmi::api::ObjectMetaExt as _;
use capcmi::apiserver::{dynamic, error_message};

/// The longest chain of owners that is followed. Cluster API has no longer chain.
const MAX_CHAIN: usize = 8;

/// An owner, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The state of the owner.
    pub state: OwnerState,
}

/// The state of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner exists: its phase, if it has one, and whether it is being deleted.
    There {
        /// `status.phase`.
        phase: Option<String>,
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// The owner does not exist, or is another object of that name.
    Gone,
    /// The owner can't be read.
    Unread(String),
}

/// Reads the owners of an object, the nearest first: each is the controller of the object before it, or the
/// first owner of an object without a controller. The chain ends at an owner that does not exist or can't be
/// read.
pub(super) async fn of(client: &Client, meta: &ObjectMeta) -> Vec<Owner> {
    let (mut chain, mut meta) = (Vec::new(), meta.clone());
    while chain.len() < MAX_CHAIN {
        let namespace = meta.namespace().to_owned();
        let owners = meta.owner_references.unwrap_or_default();
        let controller = owners.iter().find(|owner| owner.controller == Some(true));
        let Some(owner) = controller.or(owners.first()).cloned() else {
            break;
        };
        let (group, version) = owner
            .api_version
            .split_once('/')
            .unwrap_or(("", &owner.api_version));
        let api = dynamic(client, &namespace, group, version, &owner.kind);
        let (state, above) = match api.get_opt(&owner.name).await {
            Ok(Some(found)) if found.metadata.uid.as_deref() == Some(owner.uid.as_str()) => {
                let phase = found.data["status"]["phase"].as_str().map(str::to_owned);
                let deleting = found.metadata.deletion_timestamp.is_some();
                (OwnerState::There { phase, deleting }, Some(found.metadata))
            }
            Ok(Some(_) | None) => (OwnerState::Gone, None),
            Err(error) => (OwnerState::Unread(error_message(&error)), None),
        };
        chain.push(Owner {
            kind: owner.kind,
            name: owner.name,
            state,
        });
        let Some(above) = above else { break };
        meta = above;
    }
    chain
}
