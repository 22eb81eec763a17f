//! Where the driver of a case runs. The cases are the same.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Cloud, Plugin, World};

/// Where the driver runs.
#[derive(Clone, Copy, Debug)]
pub enum Backing {
    /// In the provider's process.
    InProcess,
    /// As a plugin.
    Plugin,
}

/// A driver that a provider can use.
pub struct Backed {
    /// The drivers file.
    pub drivers: String,
    plugin: Option<Plugin>,
}

impl Backed {
    /// The log of a driver that runs as a plugin. A driver in the provider's process has no separate log.
    pub fn log(&self) -> Result<Option<String>> {
        self.plugin.as_ref().map(Plugin::log).transpose()
    }
}

impl Backing {
    /// A driver with this cloud.
    pub async fn of(self, world: &World, cloud: &Cloud, more: Value) -> Result<Backed> {
        self.with(world, cloud, json!({}), more).await
    }

    /// As [`Backing::of`], with further keys of the driver's entry.
    pub async fn with(self, world: &World, cloud: &Cloud, entry: Value, more: Value) -> Result<Backed> {
        self.start(world, cloud, entry, more, &[]).await
    }

    /// As [`Backing::of`], and a plugin logs all there is.
    pub async fn talkative(self, world: &World, cloud: &Cloud, more: Value) -> Result<Backed> {
        self.start(world, cloud, json!({}), more, &["--log-level=trace"])
            .await
    }

    async fn start(
        self,
        world: &World,
        cloud: &Cloud,
        entry: Value,
        more: Value,
        flags: &[&str],
    ) -> Result<Backed> {
        Ok(match self {
            Self::InProcess => Backed {
                drivers: cloud.drivers_with(entry, more),
                plugin: None,
            },
            Self::Plugin => {
                let name = entry["name"].as_str().unwrap_or("simulated");
                let mut plugin = Plugin::absent(world, name, &cloud.config(more))?;
                for flag in flags {
                    plugin = plugin.flag(flag);
                }
                plugin.listen(world).await?;
                Backed {
                    drivers: plugin.drivers(entry),
                    plugin: Some(plugin),
                }
            }
        })
    }
}
