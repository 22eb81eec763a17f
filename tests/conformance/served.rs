//! A driver of this process as the suite meets a plugin: behind an endpoint.

use std::sync::Arc;
use std::time::Duration;

use capcmi::cli::conformance::connect;
use cmi_conformance::{ConnectionWire, Target};
use cmi_driver::{Driver, Operation};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use cmi_grpc::server::{Listener, serve};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long the client waits for a call: longer than the suite does.
const LONGEST_CALL: Duration = Duration::from_secs(25);

/// Serves a driver; what it is served by ends with the guard.
pub async fn served(driver: Arc<dyn Driver>) -> (Target, DropGuard) {
    let endpoint = "tcp://127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&endpoint, None).await.unwrap();
    let config = GrpcConfig {
        endpoint: Some(listener.endpoint().unwrap().to_string()),
        ..GrpcConfig::default()
    };
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(serve(driver, listener, stopped, Duration::from_secs(1)));
    let timeouts = Operation::ALL.map(|operation| (operation, LONGEST_CALL));
    let client = GrpcDriver::new(&config, Deadlines::new(timeouts)).unwrap();
    let wire = ConnectionWire::new(connect(config.connector().unwrap()));
    let target = Target::plugin("the plugin", Arc::new(client), Arc::new(wire));
    (target, stop.drop_guard())
}
