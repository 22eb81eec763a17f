//! Container images of this repository without a container engine: the last stage of a Dockerfile, as an OCI
//! archive.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{lab::repository, sandbox::run};

/// The Debian packages of the base images that cannot be fetched. The C library's base image also has
/// libgomp1, which no node image has and no program here needs.
const BASES: [(&str, &[&str]); 2] = [
    ("gcr.io/distroless/static-debian12:nonroot", DATA),
    ("gcr.io/distroless/cc-debian12:nonroot", LIBRARIES),
];
const DATA: &[&str] = &[
    "base-files",
    "netbase",
    "tzdata",
    "media-types",
    "ca-certificates",
];
const LIBRARIES: &[&str] = &[
    "base-files",
    "netbase",
    "tzdata",
    "media-types",
    "ca-certificates",
    "libc6",
    "libssl3",
    "gcc-12-base",
    "libgcc-s1",
    "libstdc++6",
];

/// The last stage of a Dockerfile.
#[derive(Debug, PartialEq, Eq)]
pub struct Stage {
    base: String,
    labels: BTreeMap<String, String>,
    /// Path in the stage `build`, and path in the image.
    copied: Vec<(String, String)>,
    user: String,
    entrypoint: Vec<String>,
}

impl Stage {
    /// Reads a Dockerfile.
    ///
    /// # Errors
    /// When it can't be read, or when its last stage has an instruction that is not supported here.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let text = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
        let (_, last) = text.rsplit_once("\nFROM ").context("there is one stage only")?;
        let mut lines = last.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut stage = Self {
            base: lines.next().context("the last stage has no base")?.to_owned(),
            labels: BTreeMap::new(),
            copied: Vec::new(),
            user: String::new(),
            entrypoint: Vec::new(),
        };
        for line in lines {
            stage.instruction(line).with_context(|| line.to_owned())?;
        }
        Ok(stage)
    }

    fn instruction(&mut self, line: &str) -> Result<()> {
        let (instruction, arguments) = line.split_once(' ').context("it has no arguments")?;
        match instruction {
            "LABEL" => self.labels.extend(labels(arguments)?),
            "COPY" => self.copied.push(copied(arguments)?),
            "USER" => arguments.clone_into(&mut self.user),
            "ENTRYPOINT" => self.entrypoint = serde_json::from_str(arguments)?,
            _ => bail!("the instruction is not supported"),
        }
        Ok(())
    }

    /// Writes the image under a name to an archive. The base image's files come from the root file system of
    /// a node, and `built` are the programs of the stage `build` by their paths there.
    ///
    /// # Errors
    /// When the base or a program is unknown, or a file can't be written.
    pub fn write(
        &self,
        name: &str,
        node: &Path,
        built: &BTreeMap<&str, &Path>,
        archive: &Path,
    ) -> Result<()> {
        let root = tempfile::tempdir()?;
        self.base(node, root.path())?;
        for (source, destination) in &self.copied {
            let program = built.get(source.as_str());
            let program = program.with_context(|| format!("the stage `build` has no {source}"))?;
            let copy = root.path().join(destination.trim_start_matches('/'));
            // The debug information of a test's build is larger than the rest.
            run("strip", ["-o".as_ref(), copy.as_os_str(), program.as_os_str()])?;
        }
        let config = json!({
            "Entrypoint": self.entrypoint, "User": self.user, "Labels": self.labels,
            "WorkingDir": "/home/nonroot",
            "Env": [
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
            ],
        });
        write(name, &config, root.path(), archive)
    }

    fn base(&self, node: &Path, root: &Path) -> Result<()> {
        let name = self.base.split('@').next().unwrap_or_default();
        let base = BASES.iter().find(|(known, _)| *known == name);
        let (_, packages) = base.with_context(|| format!("no Debian packages are known for {name}"))?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/shipped/base.sh");
        let folders = [node, root].map(|folder| folder.display().to_string());
        let packages = packages.iter().map(|package| (*package).to_owned());
        run(&script.display().to_string(), folders.into_iter().chain(packages)).map(drop)
    }
}

/// Writes the image of a static program, as the images of Cluster API and cert-manager are, into a folder.
/// Returns the archive.
///
/// # Errors
/// When a file can't be written.
pub fn static_image(name: &str, path: &str, program: &Path, folder: &Path) -> Result<PathBuf> {
    let root = tempfile::tempdir()?;
    let copy = root.path().join(path.trim_start_matches('/'));
    fs::create_dir_all(copy.parent().unwrap_or(root.path()))?;
    fs::copy(program, &copy)?;
    let archive = folder.join(format!("{}.tar", name.replace(['/', ':'], "-")));
    let config = json!({"Entrypoint": [path], "User": "65532"});
    write(name, &config, root.path(), &archive)?;
    Ok(archive)
}

fn write(name: &str, config: &Value, root: &Path, archive: &Path) -> Result<()> {
    let oci = repository().join("images/node/oci.sh").display().to_string();
    let (root, archive) = (root.display().to_string(), archive.display().to_string());
    run(&oci, [name, &config.to_string(), &root, &archive]).map(drop)
}

/// `NAME="VALUE"…`
fn labels(arguments: &str) -> Result<Vec<(String, String)>> {
    let label = |word: &str| {
        let (name, value) = word
            .split_once('=')
            .with_context(|| format!("{word} has no value"))?;
        Ok((name.to_owned(), value.trim_matches('"').to_owned()))
    };
    arguments.split_whitespace().map(label).collect()
}

/// `--from=build SOURCE DESTINATION`
fn copied(arguments: &str) -> Result<(String, String)> {
    let words: Vec<_> = arguments.split_whitespace().collect();
    let [from, source, destination] = words.as_slice() else {
        bail!("expected --from=build SOURCE DESTINATION");
    };
    ensure!(*from == "--from=build", "only the stage `build` is copied from");
    Ok(((*source).to_owned(), (*destination).to_owned()))
}

#[test]
fn an_unsupported_instruction_of_the_last_stage_is_an_error() {
    let text = "FROM a AS build\nRUN make\n# A base.\nFROM b:c@sha256:d\nLABEL e=\"f\" \\\n      g=\"h\"\n\
                COPY --from=build /i /j\nUSER 1:2\nENTRYPOINT [\"/j\"]\n";
    let pairs = |all: &[(&str, &str)]| {
        all.iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    };
    let expected = Stage {
        base: "b:c@sha256:d".to_owned(),
        labels: BTreeMap::from_iter::<Vec<_>>(pairs(&[("e", "f"), ("g", "h")])),
        copied: pairs(&[("/i", "/j")]),
        user: "1:2".to_owned(),
        entrypoint: vec!["/j".to_owned()],
    };
    assert_eq!(Stage::parse(text).unwrap(), expected);
    for more in ["RUN make", "COPY --from=other /k /l", "ENTRYPOINT /m"] {
        assert!(Stage::parse(&format!("{text}{more}\n")).is_err(), "{more}");
    }
}
