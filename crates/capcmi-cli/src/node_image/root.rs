//! A root file system in a folder.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// As many links as Linux follows in one path.
const MOST_LINKS: usize = 40;
const PROGRAMS: [&str; 5] = [
    "usr/local/sbin",
    "usr/local/bin",
    "usr/sbin",
    "usr/bin",
    "opt/bin",
];

/// A root file system. Its links lead to its own files, never to those of this computer.
#[derive(Debug)]
pub struct Root(PathBuf);

impl Root {
    /// A root file system in a folder.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Whether there is a file with a path.
    pub fn has(&self, path: &str) -> Result<bool> {
        let found = self
            .resolve(Path::new(path), 0)
            .and_then(|path| path.try_exists());
        found.with_context(|| format!("reading /{path}"))
    }

    /// Returns the content of a file: empty if there is no such file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let bytes = self.resolve(Path::new(path), 0).and_then(fs::read);
        or_empty(bytes).with_context(|| format!("reading /{path}"))
    }

    /// Returns the text of a file: empty if there is no such file.
    pub fn text(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.read(path)?).into_owned())
    }

    /// Returns the sorted names in a folder: none if there is no such folder.
    pub fn names(&self, folder: &str) -> Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        let listed = self.resolve(Path::new(folder), 0).and_then(fs::read_dir);
        let names = listed.and_then(|entries| entries.map(name).collect::<io::Result<Vec<_>>>());
        let mut names = or_empty(names).with_context(|| format!("listing /{folder}"))?;
        names.sort();
        Ok(names)
    }

    /// Returns the texts of the files in a folder, one after the other.
    pub fn texts(&self, folder: &str) -> Result<String> {
        let names = self.names(folder)?;
        names
            .iter()
            .map(|name| Ok(self.text(&format!("{folder}/{name}"))? + "\n"))
            .collect()
    }

    /// Returns the path of a program on this computer.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        for folder in PROGRAMS {
            let path = format!("{folder}/{name}");
            if self.has(&path)? {
                return Ok(self.resolve(Path::new(&path), 0)?);
            }
        }
        bail!("{name} is not in /{}: install it", PROGRAMS.join(", /"))
    }

    /// Returns the path on this computer, behind all links.
    fn resolve(&self, path: &Path, links: usize) -> io::Result<PathBuf> {
        if links > MOST_LINKS {
            return Err(io::Error::other("too many links"));
        }
        let mut resolved = self.0.clone();
        for component in path.components() {
            match component {
                Component::Normal(name) => resolved.push(name),
                Component::ParentDir if resolved != self.0 => {
                    resolved.pop();
                }
                _ => {}
            }
            if let Component::Normal(_) = component
                && let Ok(target) = fs::read_link(&resolved)
            {
                resolved.pop();
                let folder = resolved.strip_prefix(&self.0).map_err(io::Error::other)?;
                resolved = self.resolve(&folder.join(target), links + 1)?;
            }
        }
        Ok(resolved)
    }
}

/// Whether a file's name has an extension.
pub(super) fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|found| found == extension)
}

fn or_empty<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(T::default())
        }
        read => read,
    }
}
