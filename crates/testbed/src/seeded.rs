//! Booted guests that serve the seed of their machine to their network.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::v1alpha1::InfraMachine;
use futures::Stream;
use kube::api::{Api, ListParams};
use management_cluster::hollow_kubelet::{Guest, GuestEvent};
use serde::Deserialize;

/// The poll interval of the guests.
const LOOK: Duration = Duration::from_millis(500);
/// How often in a row a guest may fail to answer before it counts as gone.
const PATIENCE: u32 = 3;

/// The values that a guest has read from its NoCloud seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// `local-hostname` of the meta data.
    pub hostname: String,
    /// `provider_id` of the meta data.
    pub provider_id: String,
    /// The user data.
    pub user_data: String,
}

impl Seed {
    /// Reads the seed.
    ///
    /// # Errors
    /// When the meta data lack one of these.
    pub fn read(meta_data: &str, user_data: String) -> Result<Self> {
        #[derive(Deserialize)]
        struct MetaData {
            #[serde(rename = "local-hostname")]
            hostname: String,
            provider_id: String,
        }
        let own: MetaData = serde_saphyr::from_str(meta_data).context("reading the meta data of a guest")?;
        Ok(Self {
            hostname: own.hostname,
            provider_id: own.provider_id,
            user_data,
        })
    }

    /// Reads the seed from a guest.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn of(address: &str) -> Result<Self> {
        let get = async |file: &str| {
            let (code, text) = crate::get(&format!("{address}:80"), file).await?;
            ensure!(code == 200, "{address} answers {code} for {file}");
            Ok(text)
        };
        Self::read(&get("/meta-data").await?, get("/user-data").await?)
    }
}

/// The events of the guests of these machines. `ask` receives the ProviderID and the address of a machine,
/// and returns the seed of its guest.
pub fn seeded_guests<A, F>(
    machines: Api<InfraMachine>,
    ask: A,
) -> impl Stream<Item = GuestEvent> + Send + 'static
where
    A: Fn(String, String) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Seed>> + Send,
{
    let start = (machines, ask, Silent::default(), VecDeque::new());
    futures::stream::unfold(start, |(machines, ask, mut silent, mut news)| async move {
        loop {
            if let Some(event) = news.pop_front() {
                return Some((event, (machines, ask, silent, news)));
            }
            if let Ok(listed) = machines.list(&ListParams::default()).await {
                let vms = listed.items.iter().filter_map(vm).collect();
                news.extend(silent.look(vms, &ask).await);
            }
            if news.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        }
    })
}

/// ProviderID and address of a machine, as soon as it has both.
fn vm(machine: &InfraMachine) -> Option<(String, String)> {
    let addresses = &machine.status.as_ref()?.addresses;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    Some((machine.spec.provider_id.clone()?, internal.address.clone()))
}

/// The guests that have answered, by ProviderID, each with its number of missing answers in a row.
#[derive(Default)]
struct Silent(BTreeMap<String, u32>);

impl Silent {
    async fn look<A, F>(&mut self, vms: Vec<(String, String)>, ask: &A) -> Vec<GuestEvent>
    where
        A: Fn(String, String) -> F,
        F: Future<Output = Result<Seed>>,
    {
        let mut news = Vec::new();
        let mut before = std::mem::take(&mut self.0);
        for (provider_id, address) in vms {
            let silent = before.remove(&provider_id);
            // The address may have belonged to another guest.
            let seed = ask(provider_id.clone(), address.clone()).await.ok();
            let seed = seed.filter(|seed| seed.provider_id == provider_id);
            let silent = match (seed, silent) {
                (Some(seed), None) => {
                    news.push(GuestEvent::Booted(booted(seed, address)));
                    0
                }
                (Some(_), Some(_)) => 0,
                (None, Some(silent)) if silent + 1 < PATIENCE => silent + 1,
                (None, Some(_)) => {
                    news.push(GuestEvent::Gone { provider_id });
                    continue;
                }
                (None, None) => continue,
            };
            self.0.insert(provider_id, silent);
        }
        let gone = before.into_keys();
        news.extend(gone.map(|provider_id| GuestEvent::Gone { provider_id }));
        news
    }
}

fn booted(seed: Seed, address: String) -> Guest {
    Guest {
        provider_id: seed.provider_id,
        addresses: vec![
            ("InternalIP".to_owned(), address),
            ("Hostname".to_owned(), seed.hostname.clone()),
        ],
        node_name: seed.hostname,
        user_data: seed.user_data.into_bytes(),
    }
}
