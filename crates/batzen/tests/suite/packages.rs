//! The output of `make deb` and `make image`, built from the program of the tests: unpacked, started, and
//! checked for readiness.

use crate::common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::setup::wait_for;
use common::{Service, free_port};
use serde_json::Value;

/// Runs a script of `deploy/package` with the program of the tests.
fn package(script: &str, out: &Path) {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/package");
    let output = Command::new(deploy.join(script))
        .arg(env!("CARGO_BIN_EXE_batzen"))
        .arg(out)
        .env("DEB_COMPRESSION", "none")
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

fn must(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Serves a bank with this program in a directory, and waits until it answers `/ready`.
fn serve(mut program: Command, config: &[&str]) -> Service {
    let port = free_port();
    let child = program
        .args(["bank", "serve", "--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(config)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let service = Service { child };
    wait_for(port, "/ready");
    service
}

#[test]
fn the_debian_package_has_what_its_units_name() {
    let dir = tempfile::tempdir().unwrap();
    package("deb.sh", dir.path());
    let root = dir.path().join("root");
    let package = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let package: PathBuf = package
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .find(|path| !path.to_str().unwrap().contains("dbgsym"))
        .unwrap();
    must(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root));

    let units = std::fs::read_dir(root.join("usr/lib/systemd/system")).unwrap();
    let users = std::fs::read_to_string(root.join("usr/lib/sysusers.d/batzen.conf")).unwrap();
    let mut count = 0;
    for unit in units {
        let text = std::fs::read_to_string(unit.unwrap().path()).unwrap();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let start: Vec<&str> = value("ExecStart=").split(' ').collect();
        assert!(root.join(start[0].trim_start_matches('/')).exists(), "{text}");
        if let Some(at) = start.iter().position(|word| *word == "--config") {
            assert!(root.join(start[at + 1].trim_start_matches('/')).exists(), "{text}");
        }
        // An instance of a template.
        let user = value("User=").replace("%i", "rsa");
        assert!(users.contains(&format!("u {user} ")), "{text}");
        count += 1;
    }
    assert!(count >= 8);
    for kind in ["rsa", "cs", "eddsa"] {
        let link = std::fs::read_link(root.join(format!("usr/bin/taler-exchange-secmod-{kind}"))).unwrap();
        assert_eq!(link, Path::new("batzen"));
        assert!(users.contains(&format!("u batzen-secmod-{kind} ")), "{users}");
    }
    assert!(root.join("etc/batzen/secmod.conf").exists());
    for file in ["share/man/man1/batzen-exchange-serve.1.gz", "share/bash-completion/completions/batzen"] {
        assert!(root.join("usr").join(file).exists(), "{file}");
    }
    let link = std::fs::read_link(root.join("usr/bin/taler-exchange-httpd")).unwrap();
    assert_eq!(link, Path::new("batzen"));

    // The packaged program serves with the packaged configuration.
    let config = root.join("etc/batzen/bank.conf");
    let data = dir.path().join("data");
    let program = Command::new(root.join("usr/bin/batzen"));
    let bank = serve(program, &["--config", config.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert!(bank.terminate().0.success());
}

#[test]
fn the_image_is_small_and_serves_without_the_rest_of_a_system() {
    let dir = tempfile::tempdir().unwrap();
    package("image.sh", dir.path());
    let layout = dir.path().join("batzen-image");
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        layout.join("blobs/sha256").join(digest)
    };
    let json = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let index = json(&layout.join("index.json"));
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["User"], "65532:65532", "it must not run as root");
    let size = std::fs::metadata(dir.path().join("batzen-image.tar")).unwrap().len();
    assert!(size < 40_000_000, "{size} bytes");

    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    must(
        Command::new("tar")
            .arg("--no-same-owner")
            .arg("-xzf")
            .arg(blob(&manifest["layers"][0]))
            .arg("-C")
            .arg(&root),
    );
    // In a separate root that contains only the image's files. The user namespace lets any user do this.
    let mut program = Command::new("unshare");
    program.args(["--map-root-user", "chroot"]).arg(&root).arg("/usr/bin/batzen");
    let bank = serve(program, &["--currency", "KUDOS", "--data", "/data/bank"]);
    drop(bank);
}

/// Installs a package in a copy-on-write view of this system, and starts its services there as their units do.
const INSTALL: &str = r#"
mount -t tmpfs tmpfs "$DIR"
mkdir "$DIR/upper" "$DIR/work" "$DIR/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/root"
mount -t proc proc "$DIR/root/proc"
mount --bind /dev "$DIR/root/dev"
mount -t tmpfs tmpfs "$DIR/root/run"
cp "$PACKAGE" "$DIR/root/run/batzen.deb"
chroot "$DIR/root" dpkg -i /run/batzen.deb >&2
for port in $PORTS; do
	chroot "$DIR/root" sed -Ei "s/^# (PORT|HTTP_PORT|ADMIN_PORT|TCP) = /\1 = /; s/\b${port%=*}\b/${port#*=}/g" \
		/etc/batzen/bank.conf /etc/batzen/exchange.conf /etc/batzen/ledger.conf /etc/batzen/switch.conf
done
for service in bank exchange ledger switch; do
	unit=$DIR/root/usr/lib/systemd/system/batzen-$service.service
	user=$(sed -n 's/^User=//p' "$unit")
	for kind in State:var/lib Runtime:run; do
		name=$(sed -n "s/^${kind%:*}Directory=//p" "$unit")
		[ -z "$name" ] || chroot "$DIR/root" install -d -m 700 -o "$user" "/${kind#*:}/$name"
	done
	start=$(sed -n 's/^ExecStart=//p' "$unit")
	chroot "$DIR/root" setpriv --reuid "$user" --regid "$user" --clear-groups env -i HOME=/nonexistent $start &
done
wait
"#;

/// Needs root, as an installation does. Other users check the package's content only (above).
#[test]
fn the_debian_package_installs_and_its_services_start() {
    let may_mount = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !rustix::process::geteuid().is_root() || !may_mount.is_ok_and(|status| status.success()) {
        eprintln!("not run: only root can install a package");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    package("deb.sh", dir.path());
    let packages = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut packages = packages.filter(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = packages.find(|path| !path.to_str().unwrap().contains("dbgsym")).unwrap();
    let view = dir.path().join("view");
    std::fs::create_dir(&view).unwrap();
    let named = [8081, 8082, 8090, 8091, 3001, 3002];
    let ports: Vec<(u16, u16)> = named.into_iter().map(|port| (port, free_port())).collect();
    let list: Vec<String> = ports.iter().map(|(named, free)| format!("{named}={free}")).collect();
    let child = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "bash", "-euo", "pipefail", "-c", INSTALL])
        .env("DIR", &view)
        .env("PACKAGE", &package)
        .env("PORTS", list.join(" "))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut services = Service { child };
    for (named, free) in ports {
        // Ports with /ready: exchange, bank, the switch's operators, the ledger's HTTP interface.
        if [8081, 8082, 8091, 3002].contains(&named) {
            services.assert_runs();
            wait_for(free, "/ready");
        }
    }
}

/// The commands of the compose file, in processes instead of containers.
#[test]
fn the_composed_services_start() {
    let file = include_str!("../../../../deploy/compose.yaml");
    let image = format!("image: batzen:{}\n", env!("CARGO_PKG_VERSION"));
    let dir = tempfile::tempdir().unwrap();
    let (exchange_port, bank_port) = (free_port(), free_port());
    let mut services = Vec::new();
    for line in file.lines().filter_map(|line| line.trim().strip_prefix("command: ")) {
        let line = line
            .replace("/data/", &format!("{}/", dir.path().display()))
            .replace("//bank:", "//localhost:")
            .replace("8081", &exchange_port.to_string())
            .replace("8082", &bank_port.to_string());
        let words: Vec<String> = serde_json::from_str(&line).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        services.push(Service::start(dir.path(), words[0], &words));
    }
    assert_eq!(services.len(), 2);
    assert_eq!(file.matches(&image).count(), 2, "the services use the image of this version");
    wait_for(bank_port, "/ready");
    wait_for(exchange_port, "/ready");
    for service in services {
        assert!(service.terminate().0.success());
    }
}
