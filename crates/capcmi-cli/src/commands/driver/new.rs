//! `capcmi driver new`: the skeleton of a driver.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use capcmi::manager::cli::terminal::print_line;
use capcmi::manager::cli::{CommandError, ResultExt as _};

/// The name in the files of the skeleton.
const SAMPLE: &str = "acme";
/// The longest name: with `.example.com` it names the plugin, which has at most 63 bytes.
const MAX_NAME: usize = 40;

/// The files of a driver in Go, by path.
const GO: [(&str, &str); 6] = [
    ("go.mod", "module example.com/acme\n\ngo 1.25.0\n"),
    ("main.go", include_str!("new/go/main.go")),
    ("main_test.go", include_str!("new/go/main_test.go")),
    ("Dockerfile", include_str!("new/go/Dockerfile")),
    ("README.md", include_str!("new/go/README.md")),
    (
        ".github/workflows/driver.yaml",
        include_str!("new/go/workflow.yaml"),
    ),
];

/// The files of a driver in Python, by path.
const PYTHON: [(&str, &str); 6] = [
    ("requirements.txt", include_str!("new/python/requirements.txt")),
    ("driver.py", include_str!("new/python/driver.py")),
    ("test_driver.py", include_str!("new/python/test_driver.py")),
    ("Dockerfile", include_str!("new/python/Dockerfile")),
    ("README.md", include_str!("new/python/README.md")),
    (
        ".github/workflows/driver.yaml",
        include_str!("new/python/workflow.yaml"),
    ),
];

/// The files of a driver in any language, by path.
const COMMON: [(&str, &str); 2] = [
    (
        "deploy/sidecar/kustomization.yaml",
        include_str!("new/deploy/sidecar.yaml"),
    ),
    (
        "deploy/remote/kustomization.yaml",
        include_str!("new/deploy/remote.yaml"),
    ),
];

#[derive(Debug, Args)]
pub(in crate::commands) struct NewArgs {
    /// Name of the driver, such as `acme`: lower-case letters, digits and `-`
    name: String,
    /// Language of the driver
    #[arg(long = "lang", value_enum, value_name = "LANGUAGE")]
    language: Language,
    /// Folder to create. Default: the name of the driver.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// A language with a kit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// Go, on the kit `sdk/go`
    Go,
    /// Python, on the kit `sdk/python`
    Python,
}

impl Language {
    const fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Go => &GO,
            Self::Python => &PYTHON,
        }
    }
}

/// Writes the skeleton into a new folder.
pub(super) fn execute(args: NewArgs) -> Result<(), CommandError> {
    check_name(&args.name).misconfigured()?;
    let folder = args.folder.unwrap_or_else(|| PathBuf::from(&args.name));
    fs::create_dir(&folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))
        .misconfigured()?;
    for (path, sample) in args.language.files().iter().chain(&COMMON) {
        write(&folder.join(path), &named(sample, &args.name))?;
    }
    print_line(&format!(
        "{}: a driver with VMs in a folder, in place of your platform; README.md has the next steps",
        folder.display()
    ));
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    ensure!(
        name.len() <= MAX_NAME && begins_well && !name.ends_with('-') && name.bytes().all(is_word),
        "the name {name:?} must begin with a letter, end with a letter or digit, and have at most {MAX_NAME} \
         lower-case letters, digits and `-`"
    );
    Ok(())
}

/// Returns a file of the sample for another name. In variables of the environment, the name is in upper case.
fn named(sample: &str, name: &str) -> String {
    let variable = name.to_ascii_uppercase().replace('-', "_");
    sample
        .replace(SAMPLE, name)
        .replace(&SAMPLE.to_ascii_uppercase(), &variable)
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_name_is_replaced_in_every_file() {
        for (path, sample) in GO.into_iter().chain(PYTHON).chain(COMMON) {
            let text = named(sample, "my-cloud");
            assert!(!text.to_lowercase().contains(SAMPLE), "{path}: {text}");
        }
        assert!(named(GO[1].1, "my-cloud").contains(r#"os.Getenv("MY_CLOUD_FOLDER")"#));
        assert!(named(PYTHON[1].1, "my-cloud").contains(r#"os.environ.get("MY_CLOUD_FOLDER", "#));
    }

    #[test]
    fn names_that_a_module_or_an_image_cannot_have_are_refused() {
        for name in [
            "",
            "Acme",
            "9acme",
            "-acme",
            "acme-",
            "a b",
            "../acme",
            "a.b",
            &"a".repeat(41),
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["a", "acme", "my-cloud-2"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }
}
