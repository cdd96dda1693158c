//! The command line of the laboratory's program.

use std::path::Path;

use batzen_testkit::process::{assert_help, lab, run_lab, stdout};

#[test]
fn help_texts() {
    let help = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    assert_help(lab(), "", &help.join("batzen-lab.txt"));
    let commands = "demo, ledger bench, plan, switch demo, switch fsps, switch bench, up, experiment, provision, \
                    sweep, scale, upgrade, disturb, disturb slow-disk, disturb link, load, load start, \
                    load ramp, open, logs, pack, compare, cost, load bench, bench pay, bench store, \
                    bench hostile, bench limits, bench scale, bench report, bench compare, bench table, \
                    bench figures";
    for command in commands.split(", ") {
        assert_help(lab(), command, &help.join(format!("{}.txt", command.replace(' ', "-"))));
    }
}

#[test]
fn man_pages_and_completions_cover_every_command() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run_lab(&["man", "--out", dir.path().to_str().unwrap()]).status.success());
    for page in ["batzen-lab", "batzen-lab-bench-deposit", "batzen-lab-switch-fsps"] {
        let text = std::fs::read_to_string(dir.path().join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let script = stdout(&run_lab(&["completions", "bash"]));
    assert!(script.contains("wirewatch") && script.contains("fsps"), "{script}");
}
