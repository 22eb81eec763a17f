//! What is counted at each scrape, rather than kept up to date.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::labels::{
    BreakerLabels, DriverInfoLabels, DriverLabel, MachineLabels, OrphanLabels, PermitLabels, PhaseLabel,
};
use super::{BreakerCount, MachineCount, MachinePhase, OrphanReason, PermitCount};

/// What the drivers say that they are: the last word of each.
#[derive(Debug)]
pub(super) struct Drivers(pub Arc<Mutex<BTreeMap<String, DriverInfoLabels>>>);

pub(super) type CountPermits = Box<dyn Fn() -> [PermitCount; 2] + Send + Sync>;

/// Counts the permits at each scrape, rather than keeping a count up to date.
pub(super) struct PermitsByPriority(pub Arc<Mutex<BTreeMap<String, CountPermits>>>);

pub(super) type CountBreakers = Box<dyn Fn() -> BreakerCount + Send + Sync>;

/// Counts the circuit breakers at each scrape, rather than keeping a count up to date.
pub(super) struct BreakersByState(pub Arc<Mutex<BTreeMap<String, CountBreakers>>>);

/// How many orphans there are, by namespace and reason.
pub(super) type OrphanCounts = BTreeMap<(String, OrphanReason), u64>;

/// The orphans of each driver as the last scan found them.
#[derive(Debug)]
pub(super) struct Orphans(pub Arc<Mutex<BTreeMap<String, OrphanCounts>>>);

pub(super) type CountMachines = Box<dyn Fn() -> Vec<MachineCount> + Send + Sync>;

/// Counts the machines at each scrape, rather than keeping a count up to date.
pub(super) struct MachinesByPhase(pub Arc<OnceLock<CountMachines>>);

impl Collector for MachinesByPhase {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(count) = self.0.get() else {
            return Ok(());
        };
        let mut family = encoder.encode_descriptor(
            "machines",
            "InfraMachines by phase, driver, namespace and reason",
            None,
            MetricType::Gauge,
        )?;
        // A phase that no machine is in is shown as well: a gap is no nought.
        for phase in MachinePhase::ALL.map(MachinePhase::name) {
            ConstGauge::new(0_i64).encode(family.encode_family(&PhaseLabel { phase })?)?;
        }
        for machines in count() {
            let gauge = ConstGauge::new(i64::try_from(machines.count).unwrap_or(i64::MAX));
            let labels = MachineLabels {
                phase: machines.phase.name(),
                driver: machines.driver,
                namespace: machines.namespace,
                reason: machines.reason,
            };
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn labelled<'a>(
    counts: &'a [(&'a String, [PermitCount; 2])],
) -> impl Iterator<Item = (PermitLabels, &'a PermitCount)> {
    counts.iter().flat_map(|(driver, priorities)| {
        priorities.iter().map(|count| {
            let labels = PermitLabels {
                driver: (*driver).clone(),
                priority: count.priority,
            };
            (labels, count)
        })
    })
}

impl Collector for PermitsByPriority {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let drivers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts: Vec<_> = drivers.iter().map(|(name, count)| (name, count())).collect();
        let waiting = "Objects that wait for a permit to call a driver, by what the call is for";
        let mut family = encoder.encode_descriptor("driver_queue", waiting, None, MetricType::Gauge)?;
        for (labels, count) in labelled(&counts) {
            let gauge = ConstGauge::new(i64::try_from(count.waiting).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        let in_use = "Permits to call a driver that are in use; maxConcurrentCalls is how many there are";
        let mut family =
            encoder.encode_descriptor("driver_permits_in_use", in_use, None, MetricType::Gauge)?;
        for (labels, count) in labelled(&counts) {
            let gauge = ConstGauge::new(i64::try_from(count.in_use).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for BreakersByState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let drivers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts: Vec<_> = drivers.iter().map(|(name, count)| (name, count())).collect();
        let held_back = "Classes of VMs whose creates are held back for want of capacity: `open` where none \
            is made, `half-open` where few are, to find out whether there is room";
        let mut family = encoder.encode_descriptor("driver_breakers", held_back, None, MetricType::Gauge)?;
        for (driver, count) in &counts {
            for (state, classes) in [("open", count.open), ("half-open", count.half_open)] {
                let labels = BreakerLabels {
                    driver: (*driver).clone(),
                    state,
                };
                let gauge = ConstGauge::new(i64::try_from(classes).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        let waiting = "Machines that wait for capacity, behind the circuit breakers of a driver";
        let mut family =
            encoder.encode_descriptor("driver_capacity_queue", waiting, None, MetricType::Gauge)?;
        for (driver, count) in &counts {
            let labels = DriverLabel {
                driver: (*driver).clone(),
            };
            let gauge = ConstGauge::new(i64::try_from(count.waiting).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for BreakersByState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BreakersByState")
    }
}

impl Collector for Drivers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let drivers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family =
            encoder.encode_descriptor("driver", "What a driver says that it is", None, MetricType::Info)?;
        for labels in drivers.values() {
            family.encode_info(labels)?;
        }
        Ok(())
    }
}

impl fmt::Debug for PermitsByPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitsByPriority")
    }
}

impl Collector for Orphans {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let orphans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut family = encoder.encode_descriptor(
            "orphans",
            "VMs that no InfraMachine has as its own, by the namespace of their Cluster: `orphan` where \
                there is no InfraMachine, `duplicate` where it has another VM",
            None,
            MetricType::Gauge,
        )?;
        for (driver, counts) in orphans.iter() {
            for ((namespace, reason), count) in counts {
                let labels = OrphanLabels {
                    driver: driver.clone(),
                    namespace: namespace.clone(),
                    reason: reason.name(),
                };
                let gauge = ConstGauge::new(i64::try_from(*count).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MachinesByPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MachinesByPhase")
    }
}
