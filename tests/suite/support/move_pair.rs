//! Two management clusters with a provider each, for what `clusterctl move` takes from one to the other.

use anyhow::Result;
use capcmi::admission::manifests::{self, Part};
use management_cluster::stand_in::StandInController;

use super::provider::Replica;
use super::{Cloud, Provider, World};

/// Both have the same namespace, and their providers the same cloud.
pub struct MovePair {
    _control_planes: StandInController,
    _replicas: [Replica; 2],
    /// The cloud.
    pub cloud: Cloud,
    /// Where the objects are at first.
    pub source: World,
    /// Where they are moved to.
    pub target: World,
}

impl MovePair {
    /// Starts both, with the permissions of an opt-in and the provider that a case has for its cloud.
    pub async fn start(case: &str, opt_in: Part, provider: impl FnOnce(&Cloud) -> Provider) -> Result<Self> {
        let source = World::new(case).await?;
        let target = source.move_target().await?;
        let roles = manifests::stream(&[opt_in])?;
        for world in [&source, &target] {
            world.management.apply_yaml(&roles).await?;
        }
        let cloud = Cloud::new(&source);
        let provider = provider(&cloud);
        let at_source = provider.start(&source).await?;
        let at_target = provider.named("target").start(&target).await?;
        Ok(Self {
            _control_planes: StandInController::start(&target.management).await?,
            _replicas: [at_source, at_target],
            cloud,
            source,
            target,
        })
    }
}
