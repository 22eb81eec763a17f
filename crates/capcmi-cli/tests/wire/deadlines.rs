//! Calls that their caller has abandoned.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cmi_driver::{Driver, Machine};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use crate::support::{Connection, Scripted, Served, TIMEOUT, create};

/// An event in a driver's call.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Begun,
    Dropped,
}

/// Lives as long as a call.
struct Watched(UnboundedSender<Event>);

impl Drop for Watched {
    fn drop(&mut self) {
        // A test that has ended listens no more.
        let _heard = self.0.send(Event::Dropped);
    }
}

/// Returns a driver whose creates never end, and the events of its calls.
fn hanging() -> (Arc<dyn Driver>, UnboundedReceiver<Event>) {
    let (tell, events) = unbounded_channel();
    let driver = Scripted::creating(move |_| {
        let watched = Watched(tell.clone());
        async move {
            let _heard = watched.0.send(Event::Begun);
            std::future::pending::<cmi_driver::Result<Machine>>().await
        }
    });
    (driver, events)
}

async fn next(events: &mut UnboundedReceiver<Event>) -> Result<Event> {
    timeout(TIMEOUT, events.recv())
        .await
        .context("waiting for what happens to the call")?
        .context("the driver is gone")
}

/// PLG-CR-01
#[tokio::test]
async fn a_client_that_goes_away_drops_the_call_of_the_driver() -> Result<()> {
    let (driver, mut events) = hanging();
    let served = Served::start(driver).await?;
    let mut machines = served.machine().await?;
    let call = tokio::spawn(async move { machines.create_machine(create("m-0")).await });
    ensure!(next(&mut events).await? == Event::Begun);
    call.abort();
    ensure!(next(&mut events).await? == Event::Dropped);
    served.stop().await
}

/// PLG-CR-04
#[tokio::test]
async fn a_deadline_drops_the_call_and_is_answered_as_such() -> Result<()> {
    let (driver, mut events) = hanging();
    let served = Served::start(driver).await?;
    let mut raw = Connection::open(UnixStream::connect(served.socket()?).await?).await?;
    // tonic has its own deadline, which must never be the first.
    for grpc_timeout in ["50m", "1m", "3000u", "0n"] {
        let headers = [("grpc-timeout", grpc_timeout)];
        let answer = raw
            .call("/cmi.v1.Machine/CreateMachine", &create("m-0"), &headers)
            .await?;
        ensure!(
            answer.code()? == tonic::Code::DeadlineExceeded,
            "{grpc_timeout}: {}",
            answer.code()?
        );
    }
    ensure!(next(&mut events).await? == Event::Begun);
    ensure!(next(&mut events).await? == Event::Dropped);
    served.stop().await
}

/// CMI-182: a call that does not end in time is dropped, and its client notified.
#[tokio::test]
async fn a_stop_waits_for_calls_only_so_long() -> Result<()> {
    let (driver, mut events) = hanging();
    let served = Served::start(driver).await?;
    let mut machines = served.machine().await?;
    let call = tokio::spawn(async move { machines.create_machine(create("m-0")).await });
    ensure!(next(&mut events).await? == Event::Begun);
    served.stop().await?;
    ensure!(next(&mut events).await? == Event::Dropped);
    let status = timeout(TIMEOUT, call)
        .await??
        .err()
        .context("the call was dropped")?;
    ensure!(status.code() == tonic::Code::Unavailable, "{status}");
    ensure!(status.message().contains("is stopping"), "{status}");
    Ok(())
}

/// CMI-182: a load balancer watches for ever, and must not hold up a stop.
#[tokio::test]
async fn a_watcher_of_the_health_is_notified_of_a_stop_and_let_go() -> Result<()> {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    let served = Served::simulated("{}").await?;
    let request = HealthCheckRequest {
        service: "cmi.v1.Machine".to_owned(),
    };
    let mut watched = HealthClient::new(served.channel().await?)
        .watch(request)
        .await?
        .into_inner();
    let first = watched.message().await?.context("there is a status")?;
    ensure!(first.status() == ServingStatus::Serving, "{first:?}");
    served.stop().await?;
    let last = timeout(TIMEOUT, watched.message()).await??;
    let last = last.context("the status changes")?;
    ensure!(last.status() == ServingStatus::NotServing, "{last:?}");
    let end = timeout(TIMEOUT, watched.message()).await??;
    ensure!(end.is_none(), "the stream ends well: {end:?}");
    Ok(())
}
