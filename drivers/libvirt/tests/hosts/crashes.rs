//! libvirtd is killed, restarted or stopped in the middle of a create or a delete.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use cmi_driver::{Code, MachineRef};
use futures::future::try_join_all;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::lab::machines::{code, create_with, delete, domain, status, volumes};
use crate::lab::wire::{Fate, Message, Way, procedure};
use crate::lab::{self, DEADLINE, Lab, machine};

/// One host for each point. All points run concurrently, since a call to a stopped daemon takes long to time
/// out.
const HOSTS: [&str; 8] = [
    "host-a", "host-b", "host-c", "host-d", "host-e", "host-f", "host-g", "host-h",
];
/// How long libvirtd works on a call before it crashes.
const IN_THE_MIDDLE: Duration = Duration::from_millis(100);
/// How long a call may take, whether libvirtd returns or not.
const CALL_ENDS_WITHIN: Duration = Duration::from_mins(2);

/// When libvirtd crashes.
#[derive(Clone, Copy, Debug)]
struct Point {
    name: &'static str,
    way: Way,
    procedures: &'static [u32],
    /// A word in the arguments of the call.
    word: &'static str,
}

/// After a call was carried out.
const fn after(name: &'static str, procedures: &'static [u32], word: &'static str) -> Point {
    let way = Way::Back;
    Point {
        name,
        way,
        procedures,
        word,
    }
}

/// During a call.
const fn amid(name: &'static str, way: Way, procedures: &'static [u32]) -> Point {
    Point {
        name,
        way,
        procedures,
        word: "",
    }
}

/// Points where a create may be interrupted.
const OF_A_CREATE: [Point; HOSTS.len()] = [
    after("overlay made", &procedure::MAKE_VOLUME, "-root.qcow2"),
    after("seed made", &procedure::MAKE_VOLUME, "-seed-"),
    amid("seed being written", Way::Upload, &procedure::UPLOAD),
    after("data disk made", &procedure::MAKE_VOLUME, "-data-0.qcow2"),
    after("domain defined", &procedure::DEFINE, ""),
    amid("domain being started", Way::There, &procedure::START),
    after("domain started", &procedure::START, ""),
    after("start noted", &procedure::NOTE, ""),
];

/// Points where a delete may be interrupted.
const OF_A_DELETE: [Point; HOSTS.len()] = [
    after("deletion noted", &procedure::NOTE, ""),
    amid("domain being switched off", Way::There, &procedure::DESTROY),
    after("domain switched off", &procedure::DESTROY, ""),
    after("overlay deleted", &procedure::DELETE_VOLUME, "-root.qcow2"),
    after("seed deleted", &procedure::DELETE_VOLUME, "-seed-"),
    after("data disk deleted", &procedure::DELETE_VOLUME, "-data-0.qcow2"),
    amid("domain being undefined", Way::There, &procedure::UNDEFINE),
    after("domain undefined", &procedure::UNDEFINE, ""),
];

/// How libvirtd crashes. Unless it is stopped, it restarts automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    Killed,
    Restarted,
    Stopped,
}

impl Crash {
    const fn signal(self) -> &'static str {
        match self {
            Self::Killed => "KILL",
            Self::Restarted => "TERM",
            Self::Stopped => "STOP",
        }
    }
}

/// Crashes the libvirtd of one host at one point.
struct Breaker {
    lab: Arc<Lab>,
    host: &'static str,
    armed: Mutex<Option<(Point, Crash)>>,
    is_stopped: AtomicBool,
    /// The thread that crashes libvirtd in the middle of a call.
    crashes: Mutex<Option<JoinHandle<()>>>,
}

impl Breaker {
    /// Puts a breaker on the wire to a host.
    fn on(lab: &Arc<Lab>, host: &'static str) -> Result<Arc<Self>> {
        let breaker = Arc::new(Self {
            lab: Arc::clone(lab),
            host,
            armed: Mutex::default(),
            is_stopped: AtomicBool::default(),
            crashes: Mutex::default(),
        });
        // The wire lives as long as the process, and must not keep the hosts alive.
        let on_the_wire = Arc::downgrade(&breaker);
        let fates = move |message: Message<'_>| {
            let breaker = on_the_wire.upgrade();
            breaker.map_or(Fate::Passes, |breaker| breaker.fate(message))
        };
        lab.lay_wire(host, Arc::new(fates))?;
        Ok(breaker)
    }

    fn fate(self: &Arc<Self>, message: Message<'_>) -> Fate {
        let hit = self
            .armed
            .lock()
            .unwrap()
            .take_if(|(point, _)| message.is(point.way, point.procedures, point.word));
        let Some((point, crash)) = hit else {
            return Fate::Passes;
        };
        if point.way == Way::There {
            let breaker = Arc::clone(self);
            let crashes = thread::spawn(move || {
                thread::sleep(IN_THE_MIDDLE);
                breaker.crash(crash);
            });
            *self.crashes.lock().unwrap() = Some(crashes);
            return Fate::Passes;
        }
        self.crash(crash);
        // A stopped libvirtd answers only after it continues.
        while self.is_stopped.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(20));
        }
        match crash {
            Crash::Killed => Fate::Lost,
            Crash::Restarted | Crash::Stopped => Fate::Passes,
        }
    }

    fn crash(&self, crash: Crash) {
        self.is_stopped.store(crash == Crash::Stopped, Ordering::SeqCst);
        self.lab.signal(self.host, crash.signal()).unwrap();
    }

    fn is_armed(&self) -> bool {
        self.armed.lock().unwrap().is_some()
    }

    /// Makes a call during which libvirtd crashes, and then restores libvirtd.
    async fn breaks<T>(
        &self,
        (point, crash): (Point, Crash),
        call: impl Future<Output = cmi_driver::Result<T>>,
    ) -> Result<()> {
        *self.armed.lock().unwrap() = Some((point, crash));
        let started = Instant::now();
        let answer = timeout(CALL_ENDS_WITHIN, call).await;
        // The call may have ended before the crash.
        let crashes = self.crashes.lock().unwrap().take();
        ensure!(
            crashes.is_none_or(|crashes| crashes.join().is_ok()),
            "libvirtd did not go away"
        );
        ensure!(!self.is_armed(), "the point was not reached");
        if self.is_stopped.swap(false, Ordering::SeqCst) {
            self.lab.signal(self.host, "CONT")?;
        }
        let answer = answer.with_context(|| format!("no answer after {:?}", started.elapsed()))?;
        ensure!(
            matches!(code(&answer), None | Some(Code::Unavailable | Code::Aborted)),
            "{:?}",
            code(&answer)
        );
        Ok(())
    }
}

/// Repeats a call until it succeeds, like a provider.
async fn until_ok<T>(mut call: impl AsyncFnMut() -> cmi_driver::Result<T>) -> Result<T> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match call().await {
            Ok(value) => return Ok(value),
            Err(status) => {
                let passes = [Code::Unavailable, Code::Aborted].contains(&status.code());
                ensure!(passes && Instant::now() < deadline, "{status}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Checks that the machine has one complete VM, which runs and starts with its host.
fn ensure_one(lab: &Lab, host: &str, machine: &MachineRef) -> Result<()> {
    let connect = lab.connect(host)?;
    ensure!(connect.list_all_domains(0)?.len() == 1);
    let there = domain(&connect, machine)?;
    ensure!(there.is_active()?);
    ensure!(there.get_autostart()?, "it does not start with its host");
    for word in ["root", "seed", "console", "data-0"] {
        let found = volumes(&connect, machine, word)?;
        ensure!(found.len() == 1, "{word}: {found:?}");
    }
    let left = lab.left_on(host)?;
    ensure!(
        left.len() == 6,
        "a domain, four volumes and one QEMU are expected: {left:?}"
    );
    Ok(())
}

/// Checks that nothing of the machine is left.
async fn ensure_gone(lab: &Lab, host: &str, driver: &LibvirtDriver, machine: &MachineRef) -> Result<()> {
    let seen = status(driver, machine, None).await;
    ensure!(code(&seen) == Some(Code::NotFound), "{seen:?}");
    let left = lab.left_on(host)?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Runs one crash at one point of a create and one of a delete, on one host.
async fn crashes(breaker: &Breaker, at: usize, crash: Crash) -> Result<()> {
    let (lab, host) = (&breaker.lab, breaker.host);
    let driver = LibvirtDriver::new(Config::parse(&lab.config_over_wires(&[host])?)?);
    let named = |name: &str| {
        machine(
            &format!("{name}{at}"),
            &json!({"disks": [{"size": 1}]}),
            b"#!/bin/sh\n",
        )
    };

    let point = OF_A_CREATE[at];
    let (finished, given_up, deleted) = (named("finished"), named("given-up"), named("deleted"));
    let what = format!("a create with libvirtd {crash:?} at: {}", point.name);
    breaker
        .breaks((point, crash), create_with(&driver, &finished, None))
        .await
        .context(what.clone())?;
    let made = until_ok(async || create_with(&driver, &finished, None).await)
        .await
        .context(what.clone())?;
    ensure_one(lab, host, &finished).context(what.clone())?;
    until_ok(async || delete(&driver, &finished, Some(&made.provider_id)).await).await?;
    ensure_gone(lab, host, &driver, &finished)
        .await
        .context(what.clone())?;

    breaker
        .breaks((point, crash), create_with(&driver, &given_up, None))
        .await
        .context(what.clone())?;
    until_ok(async || delete(&driver, &given_up, None).await)
        .await
        .context(what.clone())?;
    ensure_gone(lab, host, &driver, &given_up).await.context(what)?;

    let point = OF_A_DELETE[at];
    let what = format!("a delete with libvirtd {crash:?} at: {}", point.name);
    let made = until_ok(async || create_with(&driver, &deleted, None).await)
        .await
        .context(what.clone())?;
    breaker
        .breaks((point, crash), delete(&driver, &deleted, Some(&made.provider_id)))
        .await
        .context(what.clone())?;
    until_ok(async || delete(&driver, &deleted, Some(&made.provider_id)).await)
        .await
        .context(what.clone())?;
    ensure_gone(lab, host, &driver, &deleted).await.context(what)
}

/// DRV-10, DRV-12, DRV-19, DRV-21
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_libvirtd_leaves_nothing_and_makes_no_second_vm() -> Result<()> {
    let Some(lab) = lab::lab_of(&HOSTS).await? else {
        return Ok(());
    };
    let lab = Arc::new(lab);
    let breakers = HOSTS.map(|host| Breaker::on(&lab, host));
    let breakers: Vec<_> = breakers.into_iter().collect::<Result<_>>()?;
    for crash in [Crash::Killed, Crash::Restarted, Crash::Stopped] {
        let all = breakers.iter().enumerate().map(|(at, breaker)| {
            let breaker = Arc::clone(breaker);
            let runtime = Handle::current();
            spawn_blocking(move || runtime.block_on(crashes(&breaker, at, crash)))
        });
        for ended in try_join_all(all).await? {
            ended?;
        }
    }
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}
