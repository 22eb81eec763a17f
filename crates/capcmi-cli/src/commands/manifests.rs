//! `capcmi manifests`.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use capcmi_manifests::{Part, stream};

/// Prints the objects to install beside the provider, ready for `kubectl apply --server-side -f -`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Manifests {
    /// Parts to generate. Default: all except remediation and volume-drain.
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Write the files into this directory, with a subdirectory for each part, instead of printing them.
    /// Default: all parts.
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
}

impl Manifests {
    /// Prints to `out`, or writes files.
    ///
    /// # Errors
    /// When the output or the folder can't be written.
    pub(super) fn run(&self, out: &mut impl Write) -> Result<()> {
        match (&self.write, self.parts.as_slice()) {
            (Some(folder), []) => Part::ALL
                .iter()
                .chain(&Part::OPTIONAL)
                .try_for_each(|part| write(*part, folder)),
            (Some(folder), parts) => parts.iter().try_for_each(|part| write(*part, folder)),
            (None, []) => print(&Part::ALL, out),
            (None, parts) => print(parts, out),
        }
    }
}

fn print(parts: &[Part], out: &mut impl Write) -> Result<()> {
    out.write_all(stream(parts)?.as_bytes())
        .context("cannot print the manifests")
}

fn write(part: Part, folder: &Path) -> Result<()> {
    let folder = folder.join(part.folder());
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for file in part.files()? {
        let path = folder.join(&file.name);
        fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
