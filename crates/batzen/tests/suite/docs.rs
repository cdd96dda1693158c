//! The shell blocks of README and docs: they run in their order, page by page, in a fresh directory, as a user
//! who is not root.
//!
//! An HTML comment on the line before a block changes that:
//!
//! * `<!-- not run: REASON -->`: the block is not run. Its `batzen` commands must still parse, and its `make`
//!   targets must exist.
//! * `<!-- machine: NAME -->`: from here on, the page uses another directory, and all services are stopped.
//!
//! A line that starts a service (`serve`, or `demo` without `--once`) runs in the background until the page ends.
//! Pages name fixed ports. They are replaced by free ones, so that tests can run at the same time.

use crate::common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::PATIENCE;

/// The ports that pages and samples name.
const PORTS: [u16; 10] = [8081, 8082, 8083, 9966, 8090, 8091, 3001, 3002, 7070, 7071];
/// The number of pages whose blocks run at the same time.
const PAGES_AT_A_TIME: usize = 3;
/// The user and group without rights, if the tests run as root.
const NOBODY: u32 = 65_534;

/// A fenced block of shell commands.
struct Block {
    line: usize,
    text: String,
    reason: Option<String>,
    machine: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README, and all pages of docs but notes and decisions, which quote commands of their time.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("deploy/README.md")];
    for directory in ["docs", "docs/internals"] {
        let entries = std::fs::read_dir(root.join(directory)).unwrap();
        pages.extend(
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|e| e == "md")),
        );
    }
    pages.sort();
    pages
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let (mut is_other, mut reason, mut machine) = (false, None, None);
    for (number, line) in page.lines().enumerate() {
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            if is_other {
                is_other = false;
            } else if let Some(block) = open.take() {
                blocks.push(block);
            } else if matches!(fence, "sh" | "bash" | "shell" | "console") {
                let (reason, machine) = (reason.take(), machine.take());
                open = Some(Block { line: number + 1, text: String::new(), reason, machine });
            } else {
                is_other = true;
            }
        } else if let Some(block) = &mut open {
            let _ = writeln!(block.text, "{line}");
        } else if let Some(comment) =
            line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"))
        {
            reason = comment.strip_prefix("not run: ").map(str::to_owned).or(reason);
            // The commands of kept measurements.
            reason = (comment == "bench: commands").then(|| comment.to_owned()).or(reason);
            machine = comment.strip_prefix("machine: ").map(str::to_owned).or(machine);
        } else if !line.trim().is_empty() {
            reason = None;
        }
    }
    assert!(open.is_none() && !is_other, "a fence is not closed");
    blocks
}

/// A command without its comment.
fn command(line: &str) -> &str {
    line.split(" #").next().unwrap_or(line).trim()
}

/// Returns whether a line starts something that serves until it is stopped.
fn is_service(line: &str) -> bool {
    let command = command(line);
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.first() {
        Some(&("batzen" | "batzen-lab")) => words.contains(&"serve") || is_demo(line),
        Some(&"make") => is_demo(line),
        _ => false,
    }
}

/// Returns whether a line starts a demo that keeps serving.
fn is_demo(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_at = |at: usize| words.get(at) == Some(&"demo");
    (is_at(1) || is_at(2)) && !line.contains("--once")
}

/// One user's machine: a home directory with the program on its path.
struct Machine {
    home: PathBuf,
    ports: BTreeMap<u16, u16>,
}

impl Machine {
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(&self.home).stdin(Stdio::null());
        command.env_clear().env("HOME", &self.home);
        command.env("PATH", format!("{}/../bin:/usr/bin:/bin", self.home.display()));
        command.process_group(0);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// The script with ports of this test.
    fn with_ports(&self, script: &str) -> String {
        self.ports.iter().fold(script.to_owned(), |text, (named, free)| {
            text.replace(&named.to_string(), &free.to_string())
        })
    }
}

/// All machines of a page, and its services.
struct Page {
    dir: tempfile::TempDir,
    ports: BTreeMap<u16, u16>,
    services: Vec<(String, PathBuf, Child)>,
    machine: String,
}

impl Page {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let ports: BTreeMap<u16, u16> = PORTS.iter().map(|port| (*port, common::free_port())).collect();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        // A copy: the build's directory may be closed to other users.
        let real = dir.path().join("real");
        std::fs::create_dir(&real).unwrap();
        let installed = [common::batzen_path(), common::lab().get_program().to_owned()].map(|built| {
            let program = real.join(Path::new(&built).file_name().unwrap());
            if std::fs::hard_link(&built, &program).is_err() {
                std::fs::copy(&built, &program).unwrap();
            }
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            program
        });
        let [program, lab] = &installed;
        // Samples show default ports in comments; here they must be set.
        let edits: String = ports.iter().map(|(named, free)| format!("s/\\b{named}\\b/{free}/g; ")).collect();
        let wrapper = format!(
            "#!/bin/bash\n\
             program={program}\n\
             case \" $* \" in\n\
             *' sample-config '*) \"$program\" \"$@\" | sed -E 's/^# (PORT|HTTP_PORT|ADMIN_PORT|TCP) = /\\1 = /; {edits}' ;;\n\
             ' ledger serve '*) exec \"$program\" \"$@\" --tcp 127.0.0.1:{tcp} ;;\n\
             ' ledger client '*) shift 2; exec \"$program\" ledger client --ledger tcp://127.0.0.1:{tcp} \"$@\" ;;\n\
             *' --once '* | *' --help '*) exec \"$program\" \"$@\" ;;\n\
             ' demo '*) exec \"$program\" \"$@\" --rsa-bits 1024 --bank-port {bank} --exchange-port {exchange} \
               --merchant-port {merchant} --shop-port {shop} ;;\n\
             *) exec \"$program\" \"$@\" ;;\n\
             esac\n",
            program = program.display(),
            tcp = ports[&3001],
            bank = ports[&8082],
            exchange = ports[&8081],
            merchant = ports[&9966],
            shop = ports[&8083],
        );
        for (name, text) in [
            ("batzen", wrapper.as_str()),
            ("batzen-lab", &wrapper.replace(program.to_str().unwrap(), lab.to_str().unwrap())),
            // `make demo` would build the program first.
            ("make", "#!/bin/bash\n[ \"$1\" = demo ] || exit 9\neval \"exec batzen demo ${2#ARGS=}\"\n"),
        ] {
            std::fs::write(bin.join(name), text).unwrap();
            std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { dir, ports, services: Vec::new(), machine: "main".to_owned() }
    }

    fn machine(&self) -> Machine {
        let home = self.dir.path().join(&self.machine);
        if !home.exists() {
            std::fs::create_dir(&home).unwrap();
            if rustix::process::geteuid().is_root() {
                chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        Machine { home, ports: self.ports.clone() }
    }

    fn run(&mut self, block: &Block) -> Result<(), String> {
        if let Some(machine) = &block.machine {
            self.stop()?;
            self.machine.clone_from(machine);
        }
        let mut script = String::new();
        for line in block.text.lines() {
            if is_service(line) {
                self.execute(&std::mem::take(&mut script))?;
                // Demos use the same ports, so a reader ends one before the next.
                if is_demo(line) {
                    self.stop()?;
                }
                self.serve(command(line).trim_end_matches('&'))?;
            } else {
                let _ = writeln!(script, "{line}");
            }
        }
        self.execute(&script)
    }

    fn execute(&self, script: &str) -> Result<(), String> {
        if script.trim().is_empty() {
            return Ok(());
        }
        let machine = self.machine();
        let script = machine.with_ports(script);
        let output = machine.command(&script).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let logs: String = self
            .services
            .iter()
            .map(|(_, log, _)| std::fs::read_to_string(log).unwrap_or_default())
            .collect();
        Err(format!(
            "{}\n{script}{}{}{logs}",
            output.status,
            common::stdout(&output),
            common::stderr(&output)
        ))
    }

    /// Starts a service and waits until it is ready.
    fn serve(&mut self, line: &str) -> Result<(), String> {
        let machine = self.machine();
        let line = machine.with_ports(line);
        let log = self.dir.path().join(format!("service-{}.log", self.services.len()));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = machine.command(&format!("exec {line}"));
        let child = command
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .map_err(|error| error.to_string())?;
        self.services.push((line.clone(), log.clone(), child));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&log).unwrap();
            if text.contains(" ready") || text.contains("serving until Ctrl-C") {
                return Ok(());
            }
            let (.., child) = self.services.last_mut().expect("it was pushed");
            if child.try_wait().is_ok_and(|status| status.is_some()) || Instant::now() > deadline {
                return Err(format!("{line} does not get ready: {text}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops all services, as Ctrl-C would.
    fn stop(&mut self) -> Result<(), String> {
        for (line, log, mut child) in self.services.drain(..) {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT)
                .map_err(|error| error.to_string())?;
            let status = child.wait().map_err(|error| error.to_string())?;
            if !status.success() {
                return Err(format!("{line} ended with {status}: {}", std::fs::read_to_string(log).unwrap()));
            }
        }
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        for (.., child) in &mut self.services {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Checks a block that is not run: its commands parse, its targets exist.
fn check_unrun(block: &Block, makefile: &str) -> Result<(), String> {
    let text = block.text.replace("\\\n", " ");
    for line in text.lines().map(command) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.first() {
            Some(&"batzen") => {
                let end = words
                    .iter()
                    .position(|word| ["|", "<", ">", "&", "&&"].contains(word))
                    .unwrap_or(words.len());
                let output = common::batzen().args(&words[1..end]).arg("--help").output().unwrap();
                if !output.status.success() {
                    return Err(format!("{line}: {}", common::stderr(&output)));
                }
            }
            Some(&"make") => {
                let target = words.get(1).copied().unwrap_or_default();
                if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
                    return Err(format!("{line}: there is no such target"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The blocks of a page that ran, and those that did not.
#[derive(Default)]
struct Counts {
    ran: usize,
    unrun: usize,
}

/// Runs the blocks of a page, up to the first that fails.
fn run_page(path: &Path, makefile: &str, counts: &mut Counts) -> Result<(), String> {
    let name = path.strip_prefix(root()).unwrap().display().to_string();
    let mut page: Option<Page> = None;
    for block in blocks(&std::fs::read_to_string(path).unwrap()) {
        let result = if block.reason.is_some() {
            counts.unrun += 1;
            check_unrun(&block, makefile)
        } else {
            counts.ran += 1;
            page.get_or_insert_with(Page::new).run(&block)
        };
        result.map_err(|error| format!("{name}:{}: {error}", block.line))?;
    }
    page.map_or(Ok(()), |mut page| page.stop()).map_err(|error| format!("{name}: {error}"))
}

#[test]
fn every_shell_block_runs_or_says_why_not() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let pages = Mutex::new(pages());
    let (failures, counts) = (Mutex::new(Vec::new()), Mutex::new(Counts::default()));
    // Blocks mostly wait for services, so several pages run at a time.
    std::thread::scope(|scope| {
        for _ in 0..PAGES_AT_A_TIME {
            scope.spawn(|| {
                let mut own = Counts::default();
                while let Some(path) = { pages.lock().unwrap().pop() } {
                    if let Err(failure) = run_page(&path, &makefile, &mut own) {
                        failures.lock().unwrap().push(failure);
                    }
                }
                let mut counts = counts.lock().unwrap();
                counts.ran += own.ran;
                counts.unrun += own.unrun;
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // The check would also pass if it found no blocks.
    let Counts { ran, unrun } = counts.into_inner().unwrap();
    assert!(ran >= 10 && unrun >= 10, "{ran} blocks ran, {unrun} did not");
}

/// Pages name files of code as `exchange/src/core.rs`: the directory of a crate, and the path in it.
#[test]
fn every_file_of_code_that_a_page_names_exists() {
    let root = root();
    let mut crates: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut directories = vec![root.join("crates"), root.join("lab"), root.join("testkit")];
    while let Some(directory) = directories.pop() {
        if directory.join("Cargo.toml").exists() {
            crates.insert(directory.file_name().unwrap().to_str().unwrap().to_owned(), directory);
        } else {
            let entries = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
            directories.extend(entries.filter(|path| path.is_dir()));
        }
    }
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let Some((first, rest)) = name.split_once('/') else { continue };
            let is_code =
                ["src/", "tests/", "benches/", "examples/"].iter().any(|start| rest.starts_with(start));
            if !is_code || rest.contains(['*', '…', ' ', ':', '<']) {
                continue;
            }
            let Some(directory) = crates.get(first) else {
                panic!("{}: `{name}`: there is no crate {first}", page.display());
            };
            assert!(directory.join(rest).exists(), "{}: `{name}` does not exist", page.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// All Markdown files of a directory and those below it.
fn pages_below(directory: &Path, pages: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages_below(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// A page without its fenced blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Whether a link of a page leads to a file, and to a heading if it names one.
fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
    if heading.is_empty() {
        return target.exists();
    }
    let text = std::fs::read_to_string(target).unwrap_or_default();
    prose(&text).lines().any(|line| line.starts_with('#') && anchor(line) == heading)
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let root = root();
    let mut pages: Vec<PathBuf> =
        ["ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "README", "SECURITY", "deploy/README", "fuzz/README"]
            .iter()
            .map(|name| root.join(name).with_extension("md"))
            .collect();
    pages_below(&root.join("docs"), &mut pages);
    let (mut checked, mut failures) = (0, Vec::new());
    for page in pages {
        let text = prose(&std::fs::read_to_string(&page).unwrap());
        for link in text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            if link.contains(':') {
                continue;
            }
            checked += 1;
            if !leads_somewhere(&page, link) {
                failures.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(checked > 100, "{checked}");
}
