//! The metrics that are counted at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{BreakerCount, MachineCount, MachinePhase, OrphanReason, PermitCount};

/// The name and version that each driver reported last.
pub(super) type Drivers = Mutex<BTreeMap<String, [String; 2]>>;
pub(super) type Permits = Mutex<BTreeMap<String, Box<dyn Fn() -> [PermitCount; 2] + Send + Sync>>>;
pub(super) type Breakers = Mutex<BTreeMap<String, Box<dyn Fn() -> BreakerCount + Send + Sync>>>;
/// The orphans of each driver as the last scan found them, by namespace and reason.
pub(super) type Orphans = Mutex<BTreeMap<String, BTreeMap<(String, OrphanReason), u64>>>;
pub(super) type Machines = OnceLock<Box<dyn Fn() -> Vec<MachineCount> + Send + Sync>>;

/// Encodes the value that it shares with [`super::Metrics`].
struct Collect<T>(Arc<T>, fn(&T, DescriptorEncoder<'_>) -> fmt::Result);

pub(super) fn collect<T: Send + Sync + 'static>(
    source: &Arc<T>,
    encode: fn(&T, DescriptorEncoder<'_>) -> fmt::Result,
) -> Box<dyn Collector> {
    Box::new(Collect(Arc::clone(source), encode))
}

impl<T: Send + Sync + 'static> Collector for Collect<T> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.1)(&self.0, encoder)
    }
}

impl<T> fmt::Debug for Collect<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collect")
    }
}

fn gauge<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: [(&str, &str); N],
    count: u64,
) -> fmt::Result {
    let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
    gauge.encode(family.encode_family(&labels)?)
}

pub(super) fn machines(machines: &Machines, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let Some(count) = machines.get() else {
        return Ok(());
    };
    let help = "InfraMachines";
    let mut family = encoder.encode_descriptor("machines", help, None, MetricType::Gauge)?;
    // A phase without machines is shown as well: a missing series is not zero.
    for phase in MachinePhase::ALL {
        gauge(&mut family, [("phase", phase.name())], 0)?;
    }
    for machines in count() {
        let labels = [
            ("phase", machines.phase.name()),
            ("driver", &machines.driver),
            ("namespace", &machines.namespace),
            ("reason", &machines.reason),
        ];
        gauge(&mut family, labels, machines.count)?;
    }
    Ok(())
}

pub(super) fn permits(permits: &Permits, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let drivers = permits.lock();
    let counts: Vec<_> = drivers.iter().map(|(driver, count)| (driver, count())).collect();
    let mut encode = |name, help, value: fn(&PermitCount) -> u64| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (driver, count) in counts
            .iter()
            .flat_map(|(driver, all)| all.iter().map(move |one| (driver, one)))
        {
            let labels = [("driver", driver.as_str()), ("priority", count.priority)];
            gauge(&mut family, labels, value(count))?;
        }
        Ok(())
    };
    encode(
        "driver_queue",
        "Objects that wait for a permit to call a driver, by kind of call",
        |count| count.waiting,
    )?;
    encode(
        "driver_permits_in_use",
        "Permits of a driver in use; maxConcurrentCalls is the limit",
        |count| count.in_use,
    )
}

pub(super) fn breakers(breakers: &Breakers, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let drivers = breakers.lock();
    let counts: Vec<_> = drivers.iter().map(|(driver, count)| (driver, count())).collect();
    let held_back = "VM classes whose creates are suspended for lack of capacity: `open` while none is \
        sent, `half-open` while a few test for capacity";
    let mut family = encoder.encode_descriptor("driver_breakers", held_back, None, MetricType::Gauge)?;
    for (driver, count) in &counts {
        for (state, classes) in [("open", count.open), ("half-open", count.half_open)] {
            gauge(&mut family, [("driver", driver), ("state", state)], classes)?;
        }
    }
    let waiting = "Machines that wait for capacity behind the circuit breakers of a driver";
    let mut family = encoder.encode_descriptor("driver_capacity_queue", waiting, None, MetricType::Gauge)?;
    for (driver, count) in &counts {
        gauge(&mut family, [("driver", driver)], count.waiting)?;
    }
    Ok(())
}

pub(super) fn drivers(drivers: &Drivers, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let drivers = drivers.lock();
    let help = "Name and version that a driver reports";
    let mut family = encoder.encode_descriptor("driver", help, None, MetricType::Info)?;
    for (driver, [name, version]) in drivers.iter() {
        family.encode_info(&[("driver", driver), ("name", name), ("version", version)])?;
    }
    Ok(())
}

pub(super) fn orphans(orphans: &Orphans, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
    let orphans = orphans.lock();
    let help = "VMs without an InfraMachine of their own, by namespace of their Cluster: `orphan` without \
        an InfraMachine, `duplicate` if the InfraMachine has another VM";
    let mut family = encoder.encode_descriptor("orphans", help, None, MetricType::Gauge)?;
    for (driver, counts) in orphans.iter() {
        for ((namespace, reason), count) in counts {
            let labels = [
                ("driver", driver.as_str()),
                ("namespace", namespace),
                ("reason", reason.name()),
            ];
            gauge(&mut family, labels, *count)?;
        }
    }
    Ok(())
}
