//! The etcd of the control plane, by its own API.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{sandbox::run, traces};

/// The names of the voting members, as a member tells them.
///
/// # Errors
/// When no member answers.
pub fn members() -> Result<BTreeSet<String>> {
    let mut refusals = Vec::new();
    for pid in traces::processes_called("etcd")? {
        match members_of(&pid) {
            Ok(members) => return Ok(members),
            Err(error) => refusals.push(format!("{error:#}")),
        }
    }
    bail!("no member of etcd answers: {refusals:?}")
}

fn members_of(pid: &str) -> Result<BTreeSet<String>> {
    let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    let url = arguments
        .split('\0')
        .find_map(|argument| argument.strip_prefix("--advertise-client-urls="))
        .context("etcd has no URL")?;
    let pki = format!("/proc/{pid}/root/etc/kubernetes/pki/etcd");
    let answer = run(
        "curl",
        [
            "--silent",
            "--show-error",
            "--max-time",
            "5",
            "--cacert",
            &format!("{pki}/ca.crt"),
            "--cert",
            &format!("{pki}/healthcheck-client.crt"),
            "--key",
            &format!("{pki}/healthcheck-client.key"),
            "--data",
            "{}",
            &format!("{url}/v3/cluster/member/list"),
        ],
    )?;
    let answer: Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
    let members = answer["members"].as_array().with_context(|| answer.to_string())?;
    let voters = members.iter().filter(|member| member["isLearner"] != true);
    Ok(voters
        .filter_map(|member| member["name"].as_str())
        .map(str::to_owned)
        .collect())
}
