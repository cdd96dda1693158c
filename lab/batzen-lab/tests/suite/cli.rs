//! The command line of the laboratory's program.

use std::path::Path;

use batzen_testkit::process::{assert_help, lab, run_lab, stdout};

#[test]
fn help_texts() {
    let help = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    for (command, file) in [
        ("", "batzen-lab"),
        ("demo", "demo"),
        ("ledger bench", "ledger-bench"),
        ("plan", "plan"),
        ("switch demo", "switch-demo"),
        ("switch fsps", "switch-fsps"),
        ("switch bench", "switch-bench"),
        ("up", "up"),
        ("experiment", "experiment"),
        ("provision", "provision"),
        ("sweep", "sweep"),
        ("scale", "scale"),
        ("upgrade", "upgrade"),
        ("disturb", "disturb"),
        ("disturb slow-disk", "disturb-slow-disk"),
        ("disturb link", "disturb-link"),
        ("load", "load"),
        ("load start", "load-start"),
        ("load ramp", "load-ramp"),
        ("open", "open"),
        ("logs", "logs"),
        ("pack", "pack"),
        ("compare", "compare"),
        ("cost", "cost"),
        ("load bench", "load-bench"),
        ("bench pay", "bench-pay"),
        ("bench store", "bench-store"),
        ("bench hostile", "bench-hostile"),
        ("bench limits", "bench-limits"),
        ("bench scale", "bench-scale"),
        ("bench report", "bench-report"),
        ("bench compare", "bench-compare"),
        ("bench table", "bench-table"),
        ("bench figures", "bench-figures"),
    ] {
        assert_help(lab(), command, &help.join(format!("{file}.txt")));
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
