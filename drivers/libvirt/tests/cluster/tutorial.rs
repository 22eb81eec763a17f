//! The commands of the documentation, run as they are printed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use management_cluster::ManagementCluster;
use tokio::process::Command;
use tokio::time::timeout;

use crate::repository;

/// The tutorial.
pub const TUTORIAL: &str = "docs/start/first-cluster.md";

/// The code blocks of a page's section, in a language.
pub fn blocks(page: &str, section: &str, language: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(repository().join(page)).with_context(|| page.to_owned())?;
    let (_, rest) = text
        .split_once(&format!("# {section}\n"))
        .with_context(|| format!("{page} has no section {section}"))?;
    let section_text = rest.split("\n#").next().unwrap_or_default();
    let start = format!("```{language}\n");
    let blocks = section_text.split(&start).skip(1);
    let blocks: Option<Vec<_>> = blocks
        .map(|block| Some(block.split_once("```")?.0.to_owned()))
        .collect();
    let blocks = blocks.with_context(|| format!("a block in {section} of {page} has no end"))?;
    ensure!(
        !blocks.is_empty(),
        "{section} of {page} has no block of {language}"
    );
    Ok(blocks)
}

/// A user's terminal, in the folder of the clone.
pub struct Terminal {
    folder: PathBuf,
    environment: Vec<(OsString, OsString)>,
    deadline: Duration,
}

impl Terminal {
    /// A terminal whose commands find kubectl, clusterctl and capcmi, and end before the deadline.
    pub fn open(
        management: &ManagementCluster,
        folder: &Path,
        variables: &[(&str, &str)],
        deadline: Duration,
    ) -> Result<Self> {
        let clusterctl = management.clusterctl();
        let capcmi = testbed::program("capcmi")?;
        let programs = [
            management.programs().kubectl.as_path(),
            Path::new(clusterctl.get_program()),
            &capcmi,
        ];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = programs
            .iter()
            .filter_map(|program| program.parent().map(Path::to_owned));
        let path = std::env::join_paths(own.chain(std::env::split_paths(&path)))?;
        let of_clusterctl = clusterctl.get_envs();
        let mut environment: Vec<_> = of_clusterctl
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        environment.push(("PATH".into(), path));
        environment.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        Ok(Self {
            folder: folder.to_owned(),
            environment,
            deadline,
        })
    }

    /// The folder that commands run in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a block of commands, prints them with their output, and returns the output.
    pub async fn run(&self, commands: &str) -> Result<String> {
        let mut shell = Command::new("bash");
        shell
            .args(["-euo", "pipefail", "-c", commands])
            .current_dir(&self.folder)
            .envs(self.environment.iter().cloned())
            .kill_on_drop(true);
        let ended = timeout(self.deadline, shell.output()).await;
        let output = ended.with_context(|| format!("no end after {:?}: {commands}", self.deadline))??;
        let (said, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        println!("$ {commands}{said}{errors}");
        ensure!(output.status.success(), "{commands} failed: {errors}");
        Ok(said.into_owned())
    }
}
