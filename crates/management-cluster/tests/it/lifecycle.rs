//! The remains of a management cluster after its end, or after the end of the process that holds it.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt};
use management_cluster::{ManagementCluster, eventually};

const DEADLINE: Duration = Duration::from_mins(1);
const FOLDER: &str = "folder of the held cluster: ";

/// Not a real test: the tests below run it as another process. It holds a cluster until its standard
/// input closes, and then panics.
#[tokio::test]
#[ignore = "run by other tests as a process of its own"]
async fn hold() {
    let cluster = ManagementCluster::builder()
        .core(false)
        .start()
        .await
        .expect("the cluster starts");
    println!("\n{FOLDER}{}", cluster.folder().path().display());
    std::io::stdout().flush().expect("standard output takes a line");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
        .await
        .expect("reading does not panic")
        .expect("standard input can be read");
    panic!("as was asked for");
}

/// Another process that holds a cluster.
struct Holder {
    process: Child,
    input: Option<ChildStdin>,
    folder: PathBuf,
    groups: BTreeSet<u32>,
}

impl Holder {
    fn start() -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .args(["--exact", "lifecycle::hold", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().context("no standard output")?);
        let folder = output
            .lines()
            .find_map(|line| line.ok()?.strip_prefix(FOLDER).map(PathBuf::from));
        let folder = folder.context("the other process started no cluster")?;
        let groups = groups(&folder)?;
        let running = running(&groups)?;
        ensure!(
            running.len() > 2 * groups.len(),
            "each of {groups:?} has a program: {running:?}"
        );
        Ok(Self {
            process,
            input,
            folder,
            groups,
        })
    }

    async fn wait_until_all_is_over(&self) -> Result<()> {
        eventually(DEADLINE, "the end of all programs", async || {
            let running = running(&self.groups)?;
            ensure!(running.is_empty(), "{running:?}");
            Ok(())
        })
        .await
    }
}

/// The process groups of the programs. The leader of each group is its supervisor.
fn groups(folder: &Path) -> Result<BTreeSet<u32>> {
    let entries = fs::read_dir(folder.join("supervisors"))?;
    let groups = entries.map(|entry| anyhow::Ok(entry?.file_name().to_string_lossy().parse()?));
    let groups: BTreeSet<u32> = groups.collect::<Result<_>>()?;
    ensure!(
        groups.len() >= 3,
        "etcd, kube-apiserver and kube-controller-manager are to run: {groups:?}"
    );
    Ok(groups)
}

/// The processes of these groups, as `ps` has them, without zombies.
fn running(groups: &BTreeSet<u32>) -> Result<Vec<String>> {
    let processes = Command::new("ps")
        .args(["-A", "-o", "pgid=,stat=,pid=,comm="])
        .output()?;
    let processes = String::from_utf8(processes.stdout)?;
    let of_groups = processes.lines().filter(|line| {
        let mut fields = line.split_whitespace();
        let group = fields.next().and_then(|group| group.parse().ok());
        let is_zombie = fields.next().is_some_and(|state| state.starts_with('Z'));
        group.is_some_and(|group| groups.contains(&group)) && !is_zombie
    });
    Ok(of_groups.map(str::to_owned).collect())
}

#[tokio::test]
async fn nothing_is_left_when_the_process_is_killed() -> Result<()> {
    let mut holder = Holder::start()?;
    holder.process.kill()?;
    holder.process.wait()?;
    holder.wait_until_all_is_over().await?;
    eventually(DEADLINE, "the removal of the folder", async || {
        ensure!(!holder.folder.exists(), "{} exists", holder.folder.display());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_panic_leaves_the_logs_and_nothing_else() -> Result<()> {
    let mut holder = Holder::start()?;
    drop(holder.input.take());
    assert!(!holder.process.wait()?.success());
    holder.wait_until_all_is_over().await?;
    eventually(DEADLINE, "the removal of etcd's data", async || {
        ensure!(!holder.folder.join("etcd").exists(), "it exists");
        Ok(())
    })
    .await?;
    assert!(fs::metadata(holder.folder.join("etcd.log"))?.is_file());
    assert!(fs::metadata(holder.folder.join("kube-apiserver-management.log"))?.len() > 0);
    fs::remove_dir_all(&holder.folder)?;
    Ok(())
}

#[tokio::test]
async fn core_can_be_stopped_and_started_and_nothing_outlives_the_value() -> Result<()> {
    let started = Instant::now();
    let cluster = ManagementCluster::builder().audit_log(true).start().await?;
    eprintln!("started in {:?}", started.elapsed());
    let namespace = cluster.namespace("stopped").await?;
    // Refused by the webhook: a Cluster with nothing in it.
    let empty = format!(
        "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {{name: empty, namespace: \
            {namespace}}}\n\
         spec: {{topology: {{classRef: {{name: none}}, version: not-a-version}}}}\n"
    );
    let refused = cluster.apply_yaml(&empty).await;
    assert!(
        format!("{refused:?}").contains("admission webhook"),
        "{refused:?}"
    );
    cluster.stop_core().await?;
    cluster.apply_yaml(&empty).await?;
    cluster.start_core().await?;
    let audited = fs::read_to_string(cluster.audit_log())?;
    let is_by_core = |line: &str| -> Result<bool> {
        let request: serde_json::Value = serde_json::from_str(line)?;
        Ok(
            request["user"]["username"] == "system:serviceaccount:capi-system:capi-manager"
                && request["verb"] == "watch"
                && request["objectRef"]["resource"] == "clusters",
        )
    };
    let by_core: Vec<bool> = audited.lines().map(is_by_core).collect::<Result<_>>()?;
    assert!(
        by_core.contains(&true),
        "none of {} requests is core's watch of Clusters",
        by_core.len()
    );
    let folder = cluster.folder().path().to_owned();
    let groups = groups(&folder)?;
    let ended = Instant::now();
    drop(cluster);
    eprintln!("ended in {:?}", ended.elapsed());
    assert_eq!(running(&groups)?, Vec::<String>::new());
    assert!(!folder.exists(), "{} exists", folder.display());
    Ok(())
}

#[tokio::test]
async fn a_killed_api_server_returns_with_its_objects_and_credentials() -> Result<()> {
    let cluster = ManagementCluster::builder().core(false).start().await?;
    let client = cluster.admin_client().await?;
    let namespace = cluster.namespace("kept").await?;
    cluster.kill_api_server().await;
    assert!(client.apiserver_version().await.is_err(), "it answers still");
    cluster.start_api_server().await?;
    let namespaces: Api<Namespace> = Api::all(client);
    assert_eq!(namespaces.get(&namespace).await?.name_any(), namespace);
    Ok(())
}
