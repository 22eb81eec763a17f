//! The files in `config/` match the output of the code.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result};
use capcmi_manifests::Part;

use crate::objects::{parse, repository};

#[test]
fn committed_files_are_what_the_code_prints() -> Result<()> {
    let mut faults = Vec::new();
    for part in Part::ALL.into_iter().chain(Part::OPTIONAL) {
        for file in part.files()? {
            let path = repository().join("config").join(part.folder()).join(&file.name);
            if fs::read_to_string(&path).ok().as_ref() != Some(&file.text) {
                faults.push(path.display().to_string());
            }
        }
    }
    assert!(
        faults.is_empty(),
        "these files are out of date; run `make generate` and commit:\n{}",
        faults.join("\n")
    );
    Ok(())
}

#[test]
fn no_committed_file_is_left_over_or_left_out() -> Result<()> {
    for part in Part::ALL.into_iter().chain(Part::OPTIONAL) {
        let folder = repository().join("config").join(part.folder());
        let printed: BTreeSet<String> = part.files()?.into_iter().map(|file| file.name).collect();
        let kustomization = fs::read_to_string(folder.join("kustomization.yaml"))?;
        let kustomization = parse(&kustomization)?;
        let resources = kustomization[0]["resources"].as_array().context("no resources")?;
        let used: BTreeSet<String> = resources
            .iter()
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect();
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&folder)? {
            present.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        present.remove("kustomization.yaml");
        assert_eq!(present, printed, "in {}", folder.display());
        assert_eq!(used, printed, "in the kustomization of {}", folder.display());
    }
    Ok(())
}

/// No container engine is available here, so the test only reads the Dockerfile.
#[test]
fn the_image_is_built_with_the_toolchain_of_the_workspace() -> Result<()> {
    let read = |name: &str| fs::read_to_string(repository().join(name)).context(name.to_owned());
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.map(|value| value.trim_matches(['"', ' ']).to_owned())
    };
    let pinned = value(&read("rust-toolchain.toml")?, "channel = ").context("no channel")?;
    let (dockerfile, manifest) = (read("Dockerfile")?, read("Cargo.toml")?);
    let used = value(&dockerfile, "ENV RUSTUP_TOOLCHAIN=");
    assert_eq!(used.as_deref(), Some(pinned.as_str()));
    let base = format!("FROM docker.io/library/rust:{pinned}-");
    assert!(dockerfile.contains(&base), "no {base}");
    let oldest = value(&manifest, "rust-version = ").context("no rust-version")?;
    assert!(
        pinned.starts_with(&oldest),
        "the workspace says {oldest}, and is tested with {pinned}"
    );
    assert!(dockerfile.contains("--bin capcmi-manager"), "{dockerfile}");
    Ok(())
}

/// No registry is available here. A fake container engine returns a digest for every tag.
#[test]
fn base_images_are_pinned_by_the_digest_that_their_tag_has_now() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let dockerfile = folder.path().join("Dockerfile");
    fs::copy(repository().join("Dockerfile"), &dockerfile)?;
    let engine = folder.path().join("engine");
    let pin = |digit: char, flags: &[&str]| -> Result<std::process::Output> {
        let digest = digit.to_string().repeat(64);
        fs::write(&engine, format!("#!/bin/sh\necho sha256:{digest}\n"))?;
        fs::set_permissions(&engine, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let mut script = std::process::Command::new(repository().join("hack/pin-base-images.sh"));
        script
            .args(flags)
            .env("CONTAINER_ENGINE", &engine)
            .env("DOCKERFILE", &dockerfile);
        Ok(script.output()?)
    };
    let committed = pin('a', &["--check"])?;
    assert!(committed.status.success(), "{committed:?}");
    for digit in ['a', 'b'] {
        let done = pin(digit, &[])?;
        assert!(done.status.success(), "{done:?}");
        let pinned = fs::read_to_string(&dockerfile)?;
        let digest = format!("@sha256:{}", digit.to_string().repeat(64));
        let bases: Vec<_> = pinned.lines().filter(|line| line.starts_with("FROM ")).collect();
        assert!(
            bases.len() == 2 && bases.iter().all(|line| line.matches("@sha256:").count() == 1),
            "{bases:?}"
        );
        assert!(bases.iter().all(|line| line.contains(&digest)), "{bases:?}");
        assert!(bases[0].ends_with(" AS build"), "{bases:?}");
    }
    assert!(pin('a', &["--check"])?.status.success());
    fs::write(&dockerfile, "FROM scratch:latest\n")?;
    let refused = pin('a', &["--check"])?;
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("scratch:latest") && said.contains("make pin-images"),
        "{said}"
    );
    let none = pin('x', &[])?;
    assert!(!none.status.success(), "`xxx…` was taken for a digest");
    Ok(())
}
