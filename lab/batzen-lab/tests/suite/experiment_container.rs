//! An experiment on containers: one with the files of this machine, one of an image that has only what an agent needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use batzen_testkit::process::{lab, stderr, stdout};

use crate::experiment::{CONTAINERS_CONF, Experiment, command, may_make_namespaces};

fn podman(words: &[&str]) -> Command {
    let mut command = Command::new("podman");
    command.args(words).env("CONTAINERS_CONF", CONTAINERS_CONF).stdin(Stdio::null());
    command
}

/// Whether this user and this machine run containers; a test that needs them says so when not.
fn may_run_containers() -> bool {
    let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];
    let words = [&["run", "--rm", "--network=none"][..], &limits, &["--rootfs", "/:O", "true"]].concat();
    let found = podman(&words).output();
    let may = found.as_ref().is_ok_and(|output| output.status.success());
    if !may {
        let reason = found.map_or_else(|error| error.to_string(), |output| stderr(&output));
        eprintln!("no containers here: {reason}");
    }
    may
}

/// The libraries that a program loads.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let words = stdout(&output).split_whitespace().map(PathBuf::from).collect::<Vec<_>>();
    words.into_iter().filter(|word| word.is_absolute()).collect()
}

/// An image with a shell, `setpriv`, and the libraries of Batzen.
struct Image(String);

impl Image {
    fn make() -> Self {
        let tree = tempfile::tempdir().unwrap();
        let programs = ["/bin/sh", "/usr/bin/setpriv"].map(PathBuf::from);
        let lab = PathBuf::from(lab().get_program());
        let own = [lab.with_file_name("batzen"), lab];
        let mut files: BTreeSet<PathBuf> = programs.iter().cloned().collect();
        files.extend(programs.iter().chain(&own).flat_map(|program| libraries(program)));
        for file in files {
            let inside = tree.path().join(file.strip_prefix("/").unwrap());
            std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
            std::fs::copy(&file, inside).unwrap();
        }
        std::fs::create_dir(tree.path().join("tmp")).unwrap();
        let archive = tree.path().join("image.tar");
        let (archive, dir) = (archive.to_str().unwrap(), tree.path().to_str().unwrap());
        command(&["tar", "--create", "--exclude=image.tar", "--file", archive, "--directory", dir, "."]);
        let name = format!("localhost/batzen-test-{}", std::process::id());
        let output: Output = podman(&["import", "--quiet", archive, &name]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        Self(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A container that still uses it has failed the test already.
        let _ = podman(&["rmi", "--force", &self.0]).output();
    }
}

#[test]
fn containers_run_an_experiment_and_are_gone_afterwards() {
    if !may_make_namespaces() || !may_run_containers() {
        return;
    }
    let image = Image::make();
    let mut topology = format!(
        "name = 'boxes'\nrsa_bits = 1024\n\
         [hosts.core]\nkind = 'container'\nrootfs = '/'\n\
         [hosts.people]\nkind = 'container'\nimage = '{}'\nsite = 'home'\n\
         [[link]]\nbetween = ['main', 'home']\nrtt_ms = 10\n",
        image.0
    );
    for (role, host) in [
        ("bank", "core"),
        ("exchange", "core"),
        ("merchant", "core"),
        ("auditor", "core"),
        ("load", "people"),
    ] {
        topology.push_str(&format!("[[role]]\nrole = '{role}'\nhosts = ['{host}']\n"));
    }
    let experiment = Experiment::up(&topology);
    experiment.must(&["load", "start", "--wallets", "3"]);
    let done = experiment.wait_for_payments(3);
    // Each has files of its own: the image has hardly a program, and what one writes stays in it.
    let on_host = |host: &str, script: &str| experiment.must(&["ssh", host, "--", "sh", "-c", script]);
    assert_eq!(on_host("people", "test -e /usr/bin/env || echo none"), "none\n");
    let file = format!("/only-there-{}", std::process::id());
    assert_eq!(on_host("core", &format!("touch {file} && ls {file}")), format!("{file}\n"));
    let is_outside = std::fs::remove_file(&file).is_ok();
    assert!(!is_outside, "a container writes to this machine");
    let status = experiment.status();
    assert!(status["round_trips_ms"]["people"]["core"].as_f64() >= Some(10.0), "{status}");
    experiment.must(&["disturb", "kill", "exchange"]);
    experiment.wait_until_started_again("exchange");
    experiment.wait_for_payments(done + 3);
    experiment.conserves();
    let prefix = format!("batzen{}-", experiment.state()["network"]);
    let there = || stdout(&podman(&["ps", "--all", "--format", "{{.Names}}"]).output().unwrap());
    assert_eq!(there().lines().filter(|name| name.starts_with(&prefix)).count(), 2, "{}", there());
    experiment.must(&["down"]);
    assert!(!there().contains(&prefix), "{}", there());
}
