//! A kept experiment as one file to send, and back. What is secret stays behind: passwords, tokens, keys, and the
//! configurations that have them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;

use super::check::CHECK;
use super::control::{PLAN, RAMP};
use super::hosts::NETWORK;
use super::network::ORDERS;
use super::state::{AUDIT, EVENTS, Experiment, State, TOPOLOGY};
use super::topology::{Role, Topology};

/// The text in place of a secret.
const HIDDEN: &str = "***";
/// Parts of the names of options whose values are secret.
const SECRET_WORDS: [&str; 5] = ["PASSWORD", "SECRET", "TOKEN", "SALT", "KEY"];
/// The endings of packed experiments; tar compresses by them.
const ENDINGS: [&str; 3] = [".tar.gz", ".tgz", ".tar.zst"];

/// Pack a kept experiment into one file to send, without its secrets
#[derive(Args, Clone, Debug)]
pub struct PackArgs {
    /// Directory of the experiment
    #[arg(value_name = "DIR", default_value = "experiment")]
    dir: PathBuf,
    /// The file, which ends with .tar.gz, .tgz or .tar.zst [default: DIR.tar.gz]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// An experiment that is read, and the directory that it was unpacked to, if it was a file.
pub(super) struct Opened {
    pub(super) experiment: Experiment,
    _unpacked: Option<tempfile::TempDir>,
}

/// The name of a packed experiment without its ending.
fn stem(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).filter(|stem| !stem.is_empty())
}

impl Opened {
    /// Reads the experiment in a directory or a file.
    ///
    /// # Errors
    /// When it holds none.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        if !path.is_file() {
            return Ok(Self { experiment: Experiment::open(path)?, _unpacked: None });
        }
        ensure!(
            stem(path).is_some(),
            "{}: expected a directory or a file that ends with .tar.gz, .tgz or .tar.zst",
            path.display()
        );
        let unpacked = tempfile::Builder::new().prefix("batzen-experiment-").tempdir()?;
        tar(&["--no-same-owner", "--no-same-permissions", "-C"], unpacked.path(), &["-xf"], path, &[])?;
        // It may come from anybody, and the page is written into it.
        require_plain(unpacked.path()).with_context(|| path.display().to_string())?;
        let first = std::fs::read_dir(unpacked.path())?.next();
        let dir = first.with_context(|| format!("{} is empty", path.display()))??.path();
        Ok(Self { experiment: Experiment::open(&dir)?, _unpacked: Some(unpacked) })
    }

    /// The file for the page, unless the user names one: in the directory, or beside the packed file.
    pub(super) fn page(&self, path: &Path) -> PathBuf {
        let beside = self._unpacked.as_ref().and(stem(path));
        beside.map_or_else(
            || self.experiment.dir.join("report.html"),
            |stem| path.with_file_name(format!("{stem}.html")),
        )
    }
}

/// The kept experiment at a path, or those in its directories, by name.
///
/// # Errors
/// When there is none.
pub(super) fn experiments_in(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if path.is_file() || Experiment::is_in(path) {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut below: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    below.retain(|path| Experiment::is_in(path));
    below.sort();
    ensure!(!below.is_empty(), "{} holds no experiment, and no directory of one", path.display());
    Ok(below)
}

/// Checks that there are only files and directories.
fn require_plain(dir: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        ensure!(kind.is_dir() || kind.is_file(), "{} is no file", entry.file_name().to_string_lossy());
        if kind.is_dir() {
            require_plain(&entry.path())?;
        }
    }
    Ok(())
}

/// Runs tar in a directory on an archive.
fn tar(before: &[&str], dir: &Path, how: &[&str], archive: &Path, after: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("tar")
        .args(before)
        .arg(dir)
        .args(how)
        .arg(archive)
        .args(after)
        .stdin(Stdio::null())
        .output()
        .context("cannot start tar")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "tar {}: {}", archive.display(), said.trim());
    Ok(())
}

/// A topology without the values of secret options.
fn without_secrets(topology: &Topology) -> Topology {
    let mut open = topology.clone();
    let options = open.roles.iter_mut().flat_map(|spec| spec.settings.values_mut()).flatten();
    for (option, value) in options {
        let option = option.to_ascii_uppercase();
        if SECRET_WORDS.iter().any(|word| option.contains(word)) {
            HIDDEN.clone_into(value);
        }
    }
    open
}

/// A state without secrets, and without paths of this machine.
fn open_state(experiment: &Experiment) -> State {
    let mut state = State {
        password: String::new(),
        shop_token: String::new(),
        certificate: None,
        runtime_dir: PathBuf::new(),
        own_bin_dir: PathBuf::new(),
        ..experiment.state.clone()
    };
    for instance in &mut state.instances {
        instance.settings.clear();
    }
    state
}

/// The text files that are sent, from the experiment's directory.
fn texts(experiment: &Experiment) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = [EVENTS, PLAN, ORDERS, RAMP, CHECK, AUDIT].map(PathBuf::from).into();
    let mut add = |dir: &Path| found.extend(["out", "log"].map(|name| dir.join(name)));
    let hosts = Path::new("hosts");
    for instance in &experiment.state.instances {
        let dir = hosts.join(&instance.host).join(&instance.name);
        add(&dir);
        instance
            .processes()
            .iter()
            .filter(|name| **name != instance.name)
            .for_each(|name| add(&dir.join(name)));
    }
    add(&hosts.join(NETWORK).join(NETWORK));
    let of_agents = ["samples.jsonl", "agent.log"];
    found.extend(experiment.hosts.keys().flat_map(|host| of_agents.map(|name| hosts.join(host).join(name))));
    found
}

/// Puts what is sent into a directory.
fn stage(experiment: &Experiment, dir: &Path) -> anyhow::Result<()> {
    let state = &experiment.state;
    let secrets = [Some(&state.password), Some(&state.shop_token), state.certificate.as_ref()];
    let secrets: Vec<&str> =
        secrets.into_iter().flatten().map(String::as_str).filter(|secret| !secret.is_empty()).collect();
    let put = |name: &Path, text: &str| {
        let path = dir.join(name);
        let parent = path.parent().context("a file is in a directory")?;
        std::fs::create_dir_all(parent)?;
        let text = secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN));
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    put(Path::new(TOPOLOGY), &toml::to_string(&without_secrets(&experiment.topology))?)?;
    put(Path::new(super::state::STATE), &serde_json::to_string_pretty(&open_state(experiment))?)?;
    put(Path::new("report.html"), &super::page::html(experiment, &super::page::Kept::read(experiment))?)?;
    for name in texts(experiment) {
        match std::fs::read(experiment.dir.join(&name)) {
            Ok(bytes) => put(&name, &String::from_utf8_lossy(&bytes))?,
            // Not every experiment and not every role has every file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| name.display().to_string()),
        }
    }
    for recorded in experiment.ever_of(Role::Prometheus) {
        let data = Path::new("hosts").join(&recorded.host).join(&recorded.name).join("data");
        if experiment.dir.join(&data).is_dir() {
            let link = dir.join(&data);
            std::fs::create_dir_all(link.parent().context("data are in a directory")?)?;
            symlink(experiment.dir.join(&data), link)?;
        }
    }
    Ok(())
}

/// Runs `batzen-lab pack`.
///
/// # Errors
/// When the directory holds no experiment, it still runs, or the file is there already.
pub fn run(args: &PackArgs) -> anyhow::Result<ExitCode> {
    let experiment = Experiment::open(&args.dir)?;
    ensure!(
        !experiment.state.is_up,
        "it still runs: `batzen-lab down --dir {}` ends it, and fetches what other machines have kept",
        args.dir.display()
    );
    let file = match &args.file {
        Some(file) => file.clone(),
        None => PathBuf::from(format!("{}{}", experiment.dir.display(), ENDINGS[0])),
    };
    let name = stem(&file).with_context(|| {
        format!("{}: expected a name that ends with .tar.gz, .tgz or .tar.zst", file.display())
    })?;
    ensure!(!file.exists(), "{} is there already", file.display());
    let file = std::path::absolute(&file)?;
    let staged = tempfile::Builder::new().prefix("batzen-experiment-").tempdir()?;
    let dir = staged.path().join(name);
    std::fs::create_dir(&dir)?;
    stage(&experiment, &dir)?;
    let anonymous = ["--owner=0", "--group=0", "--numeric-owner", "--dereference", "-C"];
    tar(&anonymous, staged.path(), &["--auto-compress", "-cf"], &file, &["--", name])
        .inspect_err(|_| drop(std::fs::remove_file(&file)))?;
    println!("{}", file.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_file_says_how_it_is_packed() {
        let of = |name: &str| stem(Path::new(name)).map(str::to_owned);
        assert_eq!(of("/a/town-1.tar.gz").as_deref(), Some("town-1"));
        assert_eq!(of("x.tgz").as_deref(), Some("x"));
        assert_eq!(of("x.y.tar.zst").as_deref(), Some("x.y"));
        assert_eq!((of("x.zip"), of(".tar.gz")), (None, None));
    }

    #[test]
    fn a_file_that_holds_links_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("x")).unwrap();
        symlink("/etc/passwd", dir.path().join("x/report.html")).unwrap();
        let packed = dir.path().join("x.tgz");
        tar(&["-C"], dir.path(), &["-czf"], &packed, &["x"]).unwrap();
        let error = format!("{:#}", Opened::read(&packed).err().unwrap());
        assert!(error.contains("report.html is no file"), "{error}");
    }

    #[test]
    fn secret_options_of_a_topology_are_hidden() {
        let text = "
            name = 'x'
            [hosts.a]
            [[role]]
            role = 'bank'
            hosts = ['a']
            settings = { bank = { ADMIN_PASSWORD = 'swordfish', PORT = '1' } }
        ";
        let open = toml::to_string(&without_secrets(&toml::from_str(text).unwrap())).unwrap();
        assert!(!open.contains("swordfish") && open.contains("PORT = \"1\""), "{open}");
    }
}
