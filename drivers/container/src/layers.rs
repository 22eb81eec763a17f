//! The files of a machine above its image: the upper layer of the overlay, and the store of containerd.

use std::fs;
use std::path::{Path, PathBuf};

use cmi_driver::{Code, Result, Status};

use crate::errors::status;
use crate::programs::Programs;

/// The store of containerd in a root file system. It may not be on an overlay, since containerd makes
/// overlays in it.
const STORE: &str = "var/lib/containerd";
/// The configuration of containerd.
const CONTAINERD: &str = "etc/containerd/config.toml";
/// Lets containerd start Pods that want a lower score for the kernel's OOM killer than their machine may
/// give.
const OOM_SETTING: &str = "restrict_oom_score_adj = true";

/// The folders of a machine.
#[derive(Clone, Debug)]
pub struct Layers(PathBuf);

impl Layers {
    /// The folders in a machine's folder.
    pub fn new(machine: &Path) -> Self {
        Self(machine.to_owned())
    }

    /// The upper layer: the files that the machine writes.
    pub fn upper(&self) -> PathBuf {
        self.0.join("upper")
    }

    /// The work folder of the overlay.
    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// The mount point of the overlay.
    pub fn root(&self) -> PathBuf {
        self.0.join("root")
    }

    /// The machine's store of containerd.
    pub fn store(&self) -> PathBuf {
        self.0.join("containerd")
    }

    /// Makes the folders for a machine of an image.
    ///
    /// # Errors
    /// FAILED_PRECONDITION when the image is missing, otherwise the errors of the file system.
    pub fn make(&self, programs: &Programs, image: &Path) -> Result<()> {
        check_image(image)?;
        for folder in [self.upper(), self.work(), self.root()] {
            fs::create_dir_all(&folder)
                .map_err(|error| status(&format!("making {}", folder.display()), error))?;
        }
        self.copy_store(programs, image)?;
        self.write_containerd_settings(image)
    }

    /// Copies the store of containerd by hard links, since containerd never writes into blobs and layers. It
    /// writes into its databases, which are copied as files.
    fn copy_store(&self, programs: &Programs, image: &Path) -> Result<()> {
        let (from, to) = (image.join(STORE), self.store());
        if !from.is_dir() {
            return fs::create_dir_all(&to).map_err(|error| status("making the store of containerd", error));
        }
        programs.run("cp", &["-al".as_ref(), from.as_os_str(), to.as_os_str()])?;
        copy_databases(&from, &to)
            .map_err(|error| status("copying the databases of the image's containerd", error))
    }

    fn write_containerd_settings(&self, image: &Path) -> Result<()> {
        let doing = "writing settings of containerd";
        let there = match fs::read_to_string(image.join(CONTAINERD)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| status("reading the image's settings of containerd", error))?,
        };
        let file = self.upper().join(CONTAINERD);
        let folder = file.parent().unwrap_or(&file);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, with_oom_setting(&there)))
            .map_err(|error| status(doing, error))
    }
}

fn check_image(image: &Path) -> Result<()> {
    if image.join("sbin/init").exists() || image.join("sbin/init").is_symlink() {
        return Ok(());
    }
    let what = format!(
        "image folder {} has no /sbin/init: put the root file system there",
        image.display()
    );
    Err(Status::new(Code::FailedPrecondition, what))
}

fn copy_databases(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        // Snapshots hold the file systems of containers: nothing there is a database of containerd.
        if entry.file_type()?.is_dir() && entry.file_name() != "snapshots" {
            copy_databases(&source, &target)?;
        } else if source.extension().is_some_and(|extension| extension == "db") {
            fs::remove_file(&target)?;
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Adds the setting to a configuration of containerd: below the header of the plugin where there is one.
fn with_oom_setting(config: &str) -> String {
    let is_header = |line: &str| line.replace('"', "'").trim() == "[plugins.'io.containerd.cri.v1.runtime']";
    if config.contains("restrict_oom_score_adj") {
        return config.to_owned();
    }
    if let Some(header) = config.lines().find(|line| is_header(line)) {
        return config.replacen(header, &format!("{header}\n{OOM_SETTING}"), 1);
    }
    format!("{config}\n[plugins.'io.containerd.cri.v1.runtime']\n{OOM_SETTING}\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn programs() -> Programs {
        Programs::new(tempfile::tempfile().unwrap())
    }

    #[test]
    fn the_store_is_linked_and_its_databases_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let files = ["meta.db", "snapshots/1/fs/app.db", "blobs/a"];
        for file in files.map(|file| image.join(STORE).join("plugin").join(file)) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        fs::create_dir(image.join("sbin")).unwrap();
        fs::write(image.join("sbin/init"), "").unwrap();
        let layers = Layers::new(&folder.path().join("m"));
        layers.make(&programs(), &image).unwrap();
        let is_shared = |file: &str| {
            let inode = |store: PathBuf| fs::metadata(store.join("plugin").join(file)).unwrap().ino();
            inode(layers.store()) == inode(image.join(STORE))
        };
        assert_eq!(files.map(is_shared), [false, true, true]);
    }

    #[test]
    fn an_image_without_init_is_a_failed_precondition() {
        let folder = tempfile::tempdir().unwrap();
        let layers = Layers::new(&folder.path().join("m"));
        let status = layers.make(&programs(), &folder.path().join("none")).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("none"), "{status}");
        assert!(!folder.path().join("m").exists());
    }

    #[test]
    fn containerd_gets_its_setting_once() {
        let header = "[plugins.\"io.containerd.cri.v1.runtime\"]";
        for (config, expected) in [
            (String::new(), 1),
            (format!("version = 3\n{header}\nx = 1\n"), 1),
            (format!("{header}\nrestrict_oom_score_adj = true\n"), 1),
            (format!("{}\nx = 1\n", header.replace(']', ".cni]")), 1),
        ] {
            let with = with_oom_setting(&config);
            assert_eq!(with.matches(OOM_SETTING).count(), expected, "{with}");
            assert_eq!(
                with.matches("v1.runtime'").count() + with.matches("v1.runtime\"").count(),
                1 + usize::from(config.contains(".cni")),
                "{with}"
            );
        }
    }
}
