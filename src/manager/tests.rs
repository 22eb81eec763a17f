//! The manager as a whole, around controllers that follow a script.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Request, Response, request};
use kube::client::Body;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::nodes::workload_cluster;

/// A client of an API server that is a function.
pub(super) fn client_of(
    answer: impl Fn(&request::Parts, &Value) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap_or_default();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (status, body) = answer(&parts, &body);
            let response = Response::builder()
                .status(status)
                .body(Body::from(serde_json::to_vec(&body).unwrap()))
                .unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    kube::Client::new(service, "default")
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Status line and body of a GET.
async fn get(address: std::net::SocketAddr, path: &str) -> (String, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

async fn setup() -> Setup {
    Setup {
        api_server: ApiServer::Network {
            config: Box::new(kube::Config::new("http://127.0.0.1:9".parse().unwrap())),
            protocol: Protocol::Http2,
        },
        dial: workload_cluster::network(),
        metrics: Arc::new(Metrics::new()),
        drivers: Vec::new(),
        election: None,
        options: ControllerOptions {
            namespace: None,
            watch_filter: None,
            machine_concurrency: 1,
            template_concurrency: 1,
            cluster_concurrency: 1,
            inventory_interval: Duration::from_mins(1),
            max_refreshed_machines: 1000,
            remediation: false,
            volume_drain: false,
            driver_unreachable_grace: Duration::from_mins(1),
            orphans: OrphanOptions::default(),
            reporter: "test".to_owned(),
        },
        health: listener().await,
        diagnostics: Diagnostics::Insecure(listener().await),
        runtime_extension: None,
        grace: Duration::from_secs(30),
    }
}

/// Substitutes for the controllers.
struct Work {
    background: Vec<Task>,
    controllers: Vec<Task>,
}

/// Runs the process around this work, on a replica that leads at once.
async fn run_work(
    setup: Setup,
    work: impl FnOnce(&ControllerContext) -> Work,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (running, controllers) = Running::start(setup, |context| {
        let work = work(context);
        (work.controllers, work.background)
    })?;
    let tasks = LeaderTasks {
        controllers,
        background: Vec::new(),
    };
    running.until(stop, std::future::ready(tasks)).await
}

fn controller(name: &'static str, run: impl Future<Output = ()> + Send + 'static) -> Work {
    Work {
        background: Vec::new(),
        controllers: vec![Task::new(name, run)],
    }
}

fn patient(context: &ControllerContext) -> Work {
    let (stopping, pending) = (context.stopping.clone(), context.health.wait_for("the cache"));
    let run = async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        pending.ready();
        stopping.cancelled().await;
    };
    controller("the patient controller", run)
}

async fn eventually(address: std::net::SocketAddr, path: &str, status: &str) {
    for _ in 0..100 {
        if get(address, path).await.0.contains(status) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} never answered {status}");
}

#[tokio::test]
async fn a_manager_becomes_ready_shows_metrics_and_stops_when_asked() {
    let setup = setup().await;
    let health = setup.health.local_addr().unwrap();
    let Diagnostics::Insecure(listener) = &setup.diagnostics else {
        unreachable!()
    };
    let diagnostics = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let manager = tokio::spawn(run_work(setup, patient, async move {
        let _ = stopped.await;
    }));
    let (line, body) = get(health, "/readyz").await;
    assert!(
        line.contains("503") && body.contains("waiting for the cache"),
        "{line} {body}"
    );
    eventually(health, "/readyz", "200").await;
    assert!(get(health, "/healthz").await.0.contains("200"));
    assert!(
        get(diagnostics, "/metrics")
            .await
            .1
            .contains("\ncapcmi_leader 1\n")
    );
    stop.send(()).unwrap();
    manager.await.unwrap().unwrap();
}

/// A Service must not send requests, nor a rollout go on, to a replica whose caches are empty.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_not_answered_before_its_conditions_are_registered() {
    use std::io::{Read as _, Write as _};
    static HEALTH: std::sync::OnceLock<std::net::SocketAddr> = std::sync::OnceLock::new();
    static ANSWERED: AtomicBool = AtomicBool::new(false);
    fn slow(context: &ControllerContext) -> Work {
        let mut stream = std::net::TcpStream::connect(HEALTH.get().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
        let answered = stream.read(&mut [0; 64]).is_ok_and(|read| read > 0);
        ANSWERED.store(answered, Ordering::SeqCst);
        patient(context)
    }
    let setup = setup().await;
    HEALTH.set(setup.health.local_addr().unwrap()).unwrap();
    let health = *HEALTH.get().unwrap();
    let manager = tokio::spawn(run_work(setup, slow, std::future::pending()));
    eventually(health, "/readyz", "200").await;
    assert!(!ANSWERED.load(Ordering::SeqCst), "it was answered");
    manager.abort();
}

#[tokio::test]
async fn a_controller_that_dies_ends_the_manager_with_its_name() {
    fn weak(_context: &ControllerContext) -> Work {
        let run = async { panic!("ouch") };
        controller("the weak controller", run)
    }
    let error = run_work(setup().await, weak, std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the weak controller ended unexpectedly");
}

/// A reconcile that runs at SIGTERM is awaited, and dropped when it takes too long.
#[tokio::test(start_paused = true)]
async fn running_work_is_waited_for_and_dropped_after_the_grace_period() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    static BEGUN: Notify = Notify::const_new();
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::SeqCst);
        }
    }
    fn endless(_context: &ControllerContext) -> Work {
        let run = async {
            let _running = Running;
            BEGUN.notify_one();
            std::future::pending::<()>().await;
        };
        controller("the endless controller", run)
    }
    let start = tokio::time::Instant::now();
    run_work(setup().await, endless, BEGUN.notified()).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(30));
    assert!(DROPPED.load(Ordering::SeqCst));
}

/// The watches deliver the writes of the last reconciles.
#[tokio::test]
async fn background_tasks_end_after_the_controllers() {
    static BEGUN: Notify = Notify::const_new();
    static DELIVERED: AtomicBool = AtomicBool::new(false);
    fn dependent(context: &ControllerContext) -> Work {
        let stopping = context.stopping.clone();
        let (ask, asked) = oneshot::channel::<oneshot::Sender<()>>();
        let watch = async {
            asked.await.unwrap().send(()).unwrap();
            std::future::pending::<()>().await;
        };
        let run = async move {
            BEGUN.notify_one();
            stopping.cancelled().await;
            let (deliver, delivered) = oneshot::channel();
            ask.send(deliver).unwrap();
            DELIVERED.store(delivered.await.is_ok(), Ordering::SeqCst);
        };
        Work {
            background: vec![Task::new("the watch", watch)],
            ..controller("the controller", run)
        }
    }
    run_work(setup().await, dependent, BEGUN.notified())
        .await
        .unwrap();
    assert!(DELIVERED.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_background_task_that_ends_ends_the_manager_with_its_name() {
    fn short(context: &ControllerContext) -> Work {
        let stopping = context.stopping.clone();
        Work {
            background: vec![Task::new("the watch", async {})],
            ..controller("the controller", async move { stopping.cancelled().await })
        }
    }
    let error = run_work(setup().await, short, std::future::pending()).await;
    assert_eq!(error.unwrap_err().to_string(), "the watch ended unexpectedly");
}
