//! Installs what hosts need over ssh: the package of Batzen, and Debian's packages for the roles that run there.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;
use sha2::{Digest as _, Sha256};

use super::agent::{quoted, ssh};
use super::topology::{HostKind, Role, Topology};

/// Install Batzen and what the roles need on the ssh hosts of a topology
#[derive(Args, Clone, Debug)]
pub struct ProvisionArgs {
    /// The topology, a TOML file
    #[arg(value_name = "FILE")]
    topology: PathBuf,
    /// The Debian package of Batzen; `make deb` builds it
    #[arg(long, value_name = "FILE")]
    package: PathBuf,
    /// Print what would be done on each host
    #[arg(long)]
    plan: bool,
}

/// The packages of Debian that the roles on a host need.
fn packages(topology: &Topology, host: &str) -> BTreeSet<&'static str> {
    let roles = topology.roles.iter().filter(|spec| spec.hosts.iter().any(|name| name == host));
    let mut packages = BTreeSet::from(["util-linux"]);
    for spec in roles {
        let (own, exporters): (&[_], &[_]) = match spec.role {
            role if role.is_postgres() => (&["postgresql"], &["prometheus-postgres-exporter"]),
            Role::Proxy => (&["nginx-light"], &["prometheus-nginx-exporter", "mtail"]),
            Role::Prometheus => (&["prometheus"], &[]),
            _ => (&[], &[]),
        };
        let is_recorded = topology.count(Role::Prometheus) > 0;
        packages.extend(own.iter().chain(exporters.iter().filter(|_| is_recorded)));
    }
    packages
}

/// The script that installs. It reads the package from standard input, and does nothing if it has done the same before.
fn script(digest: &str, packages: &BTreeSet<&'static str>, state_dir: &str) -> String {
    let list = packages.iter().copied().collect::<Vec<_>>().join(" ");
    let (done, state_dir) = (quoted(&format!("{digest} {list}")), quoted(state_dir));
    format!(
        "set -e\n\
         as_root=; [ \"$(id -u)\" = 0 ] || as_root='sudo -n'\n\
         if [ \"$(cat {state_dir}/provisioned 2>/dev/null)\" = {done} ]; then cat >/dev/null; echo unchanged; exit 0; fi\n\
         package=$(mktemp --suffix .deb); trap 'rm -f \"$package\"' EXIT\n\
         cat >\"$package\"; chmod 644 \"$package\"\n\
         $as_root apt-get update -qq\n\
         $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --allow-downgrades \
         \"$package\" {list} >&2\n\
         $as_root mkdir -p {state_dir}; echo {done} | $as_root tee {state_dir}/provisioned >/dev/null; echo installed\n"
    )
}

/// The directory in which a host remembers what was installed.
const STATE_DIR: &str = "/var/lib/batzen-lab";

/// Runs `batzen-lab provision`.
///
/// # Errors
/// When the topology has no ssh hosts, or a host refuses; the others are provisioned first.
pub fn run(args: &ProvisionArgs) -> anyhow::Result<ExitCode> {
    let (_, topology) = super::read(&args.topology)?;
    let hosts: Vec<_> = topology.hosts.iter().filter(|(_, host)| host.kind == HostKind::Ssh).collect();
    ensure!(!hosts.is_empty(), "{}: only hosts of kind ssh are provisioned", args.topology.display());
    let package = std::fs::read(&args.package).with_context(|| args.package.display().to_string())?;
    let digest: String = Sha256::digest(&package).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut failed = Vec::new();
    for (name, host) in hosts {
        let packages = packages(&topology, name);
        let list = packages.iter().copied().collect::<Vec<_>>().join(", ");
        if args.plan {
            println!("{name}: {}, {list}", args.package.display());
            continue;
        }
        let destination = host.ssh.as_deref().or(host.address.as_deref()).unwrap_or_default();
        let mut child = ssh(destination, topology.ssh_config.as_deref())
            .arg(script(&digest, &packages, STATE_DIR))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start ssh")?;
        if let Some(mut stdin) = child.stdin.take() {
            // A host that refuses does not read; its status says so.
            let _ = stdin.write_all(&package);
        }
        let output = child.wait_with_output()?;
        if output.status.success() {
            println!("{name}: {} ({list})", String::from_utf8_lossy(&output.stdout).trim());
        } else {
            failed.push(format!("{name}: {}", output.status));
        }
    }
    ensure!(failed.is_empty(), "not provisioned: {}", failed.join("; "));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_host_gets_what_its_roles_need() {
        let text = "
            name = 'x'
            [hosts.db]
            [hosts.edge]
            [[role]]
            role = 'postgres'
            hosts = ['db']
            [[role]]
            role = 'proxy'
            hosts = ['edge']
        ";
        let topology: Topology = toml::from_str(text).unwrap();
        assert_eq!(packages(&topology, "db"), BTreeSet::from(["postgresql", "util-linux"]));
        assert_eq!(packages(&topology, "edge"), BTreeSet::from(["nginx-light", "util-linux"]));
        let text = format!("{text}\n[[role]]\nrole = 'prometheus'\nhosts = ['db']");
        let recorded: Topology = toml::from_str(&text).unwrap();
        let exporter = "prometheus-postgres-exporter";
        assert_eq!(
            packages(&recorded, "db"),
            BTreeSet::from(["postgresql", "prometheus", exporter, "util-linux"])
        );
        assert!(packages(&recorded, "edge").contains("mtail"));
    }

    /// Runs the script with programs that only note that they were called.
    #[test]
    fn what_was_installed_is_not_installed_again() {
        let dir = tempfile::tempdir().unwrap();
        let stub = |name: &str, body: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        stub("apt-get", &format!("echo \"$@\" >> {}/calls", dir.path().display()));
        stub("sudo", "shift; exec \"$@\"");
        let state = dir.path().join("state");
        let run = |digest: &str| {
            let packages = BTreeSet::from(["postgresql"]);
            let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
            let mut command = Command::new("sh");
            command.args(["-c", &script(digest, &packages, state.to_str().unwrap())]).env("PATH", path);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(b"a package").unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(
            (run("one").as_str(), run("one").as_str(), run("two").as_str()),
            ("installed", "unchanged", "installed")
        );
        let calls = std::fs::read_to_string(dir.path().join("calls")).unwrap();
        assert_eq!(
            calls.lines().filter(|line| line.contains("install") && line.contains("postgresql")).count(),
            2,
            "{calls}"
        );
    }
}
