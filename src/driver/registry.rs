//! All configured drivers, and the choice of the driver for a machine.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ConfiguredDriver;

/// All configured drivers.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredDrivers {
    by_name: Arc<BTreeMap<String, Arc<ConfiguredDriver>>>,
}

/// Two drivers have the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("several drivers have the name `{0}`: rename all but one in the drivers file")]
pub struct DuplicateName(pub String);

/// Why a machine gets no driver. Drivers that the namespace may not use are not reported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The provider runs without a driver.
    #[error("no driver is configured: add one to the drivers file of the provider")]
    NoneConfigured,
    /// This namespace has no driver of this name.
    #[error("no driver `{name}` serves namespace `{namespace}`: {}", choice(usable))]
    NotFound {
        /// The value of `spec.driver`.
        name: String,
        /// The namespace of the machine.
        namespace: String,
        /// The drivers that the namespace may use.
        usable: Vec<String>,
    },
    /// The driver that has the VM is no longer configured.
    #[error("driver `{name}`, which has the VM, is no longer configured: add it to the drivers file again")]
    Removed {
        /// The name of the driver.
        name: String,
    },
    /// No name was given, and the namespace may use no driver.
    #[error("no driver serves namespace `{namespace}`: add the namespace to a driver in the drivers file")]
    NoneForNamespace {
        /// The namespace of the machine.
        namespace: String,
    },
    /// No name was given, and the namespace may use several drivers.
    #[error(
        "spec.driver is not set and several drivers are configured: set it to one of {}",
        names.join(", ")
    )]
    Ambiguous {
        /// The drivers that the namespace may use.
        names: Vec<String>,
    },
}

/// The remedy for the author of an object that names a missing driver.
fn choice(usable: &[String]) -> String {
    if usable.is_empty() {
        return "add the namespace to a driver in the drivers file".to_owned();
    }
    format!("use one of {}", usable.join(", "))
}

impl ConfiguredDrivers {
    /// Returns the drivers by their names.
    ///
    /// # Errors
    /// [`DuplicateName`] when two drivers have the same name.
    pub fn new(drivers: Vec<ConfiguredDriver>) -> Result<Self, DuplicateName> {
        let mut by_name = BTreeMap::new();
        for driver in drivers {
            let name = driver.name().to_owned();
            if by_name.insert(name.clone(), Arc::new(driver)).is_some() {
                return Err(DuplicateName(name));
            }
        }
        Ok(Self {
            by_name: Arc::new(by_name),
        })
    }

    /// Returns the driver for an object of this namespace, by its `spec.driver`.
    ///
    /// # Errors
    /// [`ResolveError`], a sentence for the author of the object.
    pub fn resolve(
        &self,
        name: Option<&str>,
        namespace: &str,
    ) -> Result<Arc<ConfiguredDriver>, ResolveError> {
        if self.by_name.is_empty() {
            return Err(ResolveError::NoneConfigured);
        }
        match name {
            Some(name) => self.of_name(name, namespace),
            None => self.only_one(namespace),
        }
    }

    fn of_name(&self, name: &str, namespace: &str) -> Result<Arc<ConfiguredDriver>, ResolveError> {
        self.named(name)
            .filter(|driver| driver.serves(namespace))
            .ok_or_else(|| ResolveError::NotFound {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                usable: self
                    .usable(namespace)
                    .map(|driver| driver.name().to_owned())
                    .collect(),
            })
    }

    /// Returns the driver that has the VM of an object, whether or not its namespace may still use the
    /// driver.
    ///
    /// # Errors
    /// [`ResolveError::Removed`]
    pub fn holder(&self, name: &str) -> Result<Arc<ConfiguredDriver>, ResolveError> {
        self.named(name).ok_or_else(|| ResolveError::Removed {
            name: name.to_owned(),
        })
    }

    /// Returns the drivers that a namespace may use, by name.
    fn usable(&self, namespace: &str) -> impl Iterator<Item = &Arc<ConfiguredDriver>> {
        self.iter().filter(move |driver| driver.serves(namespace))
    }

    fn only_one(&self, namespace: &str) -> Result<Arc<ConfiguredDriver>, ResolveError> {
        let usable: Vec<_> = self.usable(namespace).collect();
        match usable.as_slice() {
            [] => Err(ResolveError::NoneForNamespace {
                namespace: namespace.to_owned(),
            }),
            [driver] => Ok(Arc::clone(driver)),
            [_, _, ..] => Err(ResolveError::Ambiguous {
                names: usable.iter().map(|driver| driver.name().to_owned()).collect(),
            }),
        }
    }

    /// Returns the driver of this name for a VM that the driver made, even if the VM's namespace may no
    /// longer use it.
    pub fn named(&self, name: &str) -> Option<Arc<ConfiguredDriver>> {
        self.by_name.get(name).map(Arc::clone)
    }

    /// Ends a reconcile of `key` that began at `began`. If `key` has not asked a driver for a permit since,
    /// it leaves that driver's queue. Otherwise others would wait while a permit is set aside for it.
    pub fn reconciled(&self, key: &str, began: Instant) {
        self.iter()
            .for_each(|driver| driver.permits.leave_unless_asked_since(key, began));
    }

    /// Forgets `key`, whose object is gone; see [`ConfiguredDriver::forget`].
    pub fn forget(&self, key: &str) {
        self.iter().for_each(|driver| driver.forget(key));
    }

    /// Runs a task for each driver, forever: a task that hangs does not block the others. The tasks end with
    /// this future, which resumes the panic of a task.
    pub async fn run_for_each<T>(&self, task: impl Fn(Arc<ConfiguredDriver>) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let mut tasks: JoinSet<()> = self.iter().map(|driver| task(Arc::clone(driver))).collect();
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
        // Without a driver there is nothing to do, but this future must not end.
        pending::<()>().await;
    }

    /// Returns all drivers, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ConfiguredDriver>> {
        self.by_name.values()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FakeDriver, configured_driver_with};
    use super::super::{Limits, Namespaces, Settings};
    use super::*;
    use crate::apiserver::leadership::Leadership;

    fn configured_driver(name: &str, namespaces: &[&str]) -> ConfiguredDriver {
        let namespaces = if namespaces.is_empty() {
            Namespaces::All
        } else {
            Namespaces::Only(namespaces.iter().map(|&n| n.to_owned()).collect())
        };
        let settings = Settings {
            credentials: None,
            create_settle_time: None,
            name: name.to_owned(),
            namespaces,
            limits: Limits::default(),
        };
        configured_driver_with(settings, FakeDriver::default(), Leadership::unelected())
    }

    #[test]
    fn the_only_driver_needs_no_name_and_several_do() {
        let one = ConfiguredDrivers::new(vec![configured_driver("a", &[])]).unwrap();
        assert_eq!(one.resolve(None, "ns").unwrap().name(), "a");
        let two =
            ConfiguredDrivers::new(vec![configured_driver("a", &[]), configured_driver("b", &[])]).unwrap();
        assert_eq!(two.resolve(Some("b"), "ns").unwrap().name(), "b");
        assert_eq!(
            two.resolve(None, "ns").unwrap_err().to_string(),
            "spec.driver is not set and several drivers are configured: set it to one of a, b"
        );
    }

    #[test]
    fn a_namespace_learns_nothing_of_drivers_that_are_not_for_it() {
        let drivers = ConfiguredDrivers::new(vec![
            configured_driver("secret", &["team-a"]),
            configured_driver("open", &[]),
        ])
        .unwrap();
        assert_eq!(drivers.resolve(None, "team-b").unwrap().name(), "open");
        let hidden = drivers.resolve(Some("secret"), "team-b").unwrap_err();
        let absent = drivers.resolve(Some("absent"), "team-b").unwrap_err();
        assert_eq!(
            hidden.to_string().replace("secret", "x"),
            absent.to_string().replace("absent", "x")
        );
        assert_eq!(
            absent.to_string(),
            "no driver `absent` serves namespace `team-b`: use one of open"
        );
        assert!(drivers.resolve(Some("secret"), "team-a").is_ok());
        assert!(drivers.named("secret").is_some());
    }

    #[test]
    fn the_driver_of_a_vm_is_found_from_any_namespace() {
        let drivers = ConfiguredDrivers::new(vec![configured_driver("a", &["team-a"])]).unwrap();
        assert_eq!(drivers.holder("a").unwrap().name(), "a");
        let removed = drivers.holder("b").unwrap_err().to_string();
        assert!(removed.starts_with("driver `b`, which has the VM"), "{removed}");
    }

    #[test]
    fn without_any_driver_that_is_what_is_said() {
        assert_eq!(
            ConfiguredDrivers::default().resolve(Some("a"), "ns").unwrap_err(),
            ResolveError::NoneConfigured
        );
    }

    #[test]
    fn two_drivers_of_one_name_are_refused() {
        let twice = ConfiguredDrivers::new(vec![configured_driver("a", &[]), configured_driver("a", &[])]);
        assert_eq!(twice.unwrap_err(), DuplicateName("a".to_owned()));
    }
}
