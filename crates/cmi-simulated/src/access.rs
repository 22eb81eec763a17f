//! The permissions of tokens.

use secrecy::{ExposeSecret as _, SecretString};

use super::config::Credentials;
use cmi_driver::{Code, Operation, Result, Secrets, Status};

/// The secret key of the cloud's token.
pub const TOKEN: &str = "token";

/// Checks the token of a call.
///
/// # Errors
/// UNAUTHENTICATED when it is missing or unknown (DRV-CR-16), PERMISSION_DENIED when it may
/// not do this (DRV-CR-07).
pub fn check(credentials: Option<&Credentials>, secrets: &Secrets, operation: Operation) -> Result<()> {
    let Some(known) = credentials else { return Ok(()) };
    let Some(given) = secrets.get(TOKEN) else {
        return Err(Status::new(
            Code::Unauthenticated,
            format!("the secret has no key `{TOKEN}`"),
        ));
    };
    let is = |token: &SecretString| given.expose() == token.expose_secret().as_bytes();
    if is(&known.token) {
        return Ok(());
    }
    if known.read_only_token.as_ref().is_some_and(is) {
        return if operation.writes() {
            Err(denied(operation))
        } else {
            Ok(())
        };
    }
    if known.powerless_token.as_ref().is_some_and(is) {
        return Err(denied(operation));
    }
    Err(Status::new(
        Code::Unauthenticated,
        format!("the cloud does not know the token in the secret's key `{TOKEN}`"),
    ))
}

fn denied(operation: Operation) -> Status {
    Status::new(
        Code::PermissionDenied,
        format!("the token in the secret's key `{TOKEN}` does not allow {operation}"),
    )
}
