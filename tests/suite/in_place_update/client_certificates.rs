//! Which clients the Runtime Extension answers where it is given an authority of clients.

use anyhow::{Context as _, Result, ensure};
use management_cluster::eventually;
use serde_json::json;

use crate::support::authority::CertificateFiles;
use crate::support::{Authority, Cloud, DEADLINE, Extension, Provider, World};

/// Without a certificate, and with that of another authority, no hook is answered; not even the discovery.
#[tokio::test]
async fn the_extension_answers_only_clients_of_its_authority() -> Result<()> {
    let world = World::new("in-place-clients").await?;
    let (own, foreign) = (world.folder.join("own"), world.folder.join("foreign"));
    for folder in [&own, &foreign] {
        std::fs::create_dir_all(folder).context("making a folder for certificates")?;
        Authority::new()?.write(folder)?;
    }
    let (own, foreign) = (CertificateFiles::of(&own), CertificateFiles::of(&foreign));
    let extension = Extension::new(&world)?;
    let provider = extension.of(Provider::new(Cloud::new(&world).drivers(json!({}))));
    let with_authority = format!("--runtime-extension-client-ca-file={}", own.authority.display());
    let provider = provider.flag(with_authority).start(&world).await?;
    for hook in ["discovery", "canupdatemachine/can-update-machine"] {
        for client in [None, Some(&foreign.provider)] {
            let answer = extension.call_as(client, hook, &json!({})).await;
            ensure!(answer.is_err(), "{hook} was answered: {answer:?}");
        }
    }
    for why in ["peer sent no certificates", "invalid peer certificate"] {
        eventually(DEADLINE, "a connection that was refused", async || {
            ensure!(provider.log()?.contains(why), "none because of `{why}`");
            Ok(())
        })
        .await?;
    }
    let answer = extension
        .call_as(Some(&own.provider), "discovery", &json!({}))
        .await?;
    ensure!(
        answer["status"] == "Success" && answer["handlers"].as_array().is_some_and(|all| all.len() == 3),
        "{answer}"
    );
    Ok(())
}
