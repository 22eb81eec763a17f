//! The control groups of the machines of a run that was killed.

use std::{
    fs,
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

/// The kernel needs a moment to end the processes of a killed run.
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Removes the control groups of the run with this folder.
///
/// # Errors
/// When one can't be removed.
pub fn remove(folder: &Path) -> Result<()> {
    remove_control_groups(&StateFolder::new(&folder.join(STATE)).control_groups())
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
