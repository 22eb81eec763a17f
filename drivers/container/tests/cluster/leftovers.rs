//! The leftovers of earlier runs: a run that failed keeps its folder, and one that was killed also leaves the
//! control groups of its machines.

use std::{
    fs::{self, File},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use capcmi_driver_container::state::StateFolder;

use crate::{
    lab::STATE,
    traces::{self, CGROUPS},
};

/// The beginning of the name of a run's folder.
pub const RUN: &str = "cluster-";
/// The kernel needs a moment to end the processes of a killed run.
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until no other run takes place, and removes the leftovers. The next run waits until the returned
/// file is closed: this computer is too small for two.
///
/// # Errors
/// When something can't be removed.
pub fn take_turn(below: &Path) -> Result<File> {
    let turn = File::create(below.join("runs.lock")).context("opening the lock of the runs")?;
    turn.lock().context("waiting for another run")?;
    for name in traces::folders(below)?
        .iter()
        .filter(|name| name.starts_with(RUN))
    {
        let folder = below.join(name);
        remove_control_groups(&StateFolder::new(&folder.join(STATE)).control_groups())?;
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(turn)
}

/// Removes the control groups whose names begin so, in each hierarchy.
fn remove_control_groups(prefix: &str) -> Result<()> {
    let root = Path::new(CGROUPS);
    let hierarchies = traces::folders(root)?.into_iter().chain([String::new()]);
    for hierarchy in hierarchies.map(|name| root.join(name)) {
        for name in traces::folders(&hierarchy)? {
            if name.starts_with(prefix) {
                remove_tree(&hierarchy.join(name))?;
            }
        }
    }
    Ok(())
}

/// Removes a control group and those in it. It is busy as long as it has a process.
fn remove_tree(group: &Path) -> Result<()> {
    for name in traces::folders(group)? {
        remove_tree(&group.join(name))?;
    }
    let deadline = Instant::now() + DEADLINE;
    loop {
        match fs::remove_dir(group) {
            Err(_) if Instant::now() < deadline => sleep(PAUSE),
            removed => {
                return removed.with_context(|| format!("removing the control group {}", group.display()));
            }
        }
    }
}
