//! Measurements of a process's inside. They refuse `--target`, and say in their help why.

use clap::{Arg, Command};

/// The commands, and why each cannot load a service that runs already.
const INSIDE: &[(&str, &str)] = &[
    ("limits", "it measures this machine's processor and disk, and no service"),
    (
        "wirewatch",
        "it counts what an exchange in its own process books; from outside, credits come as fast as the bank takes them",
    ),
    (
        "aggregator",
        "it counts what an exchange in its own process adds up, of deposits that it has put into the store",
    ),
    (
        "transfer",
        "it counts what an exchange in its own process has paid, of transfers that it has put into the store",
    ),
    ("partitions", "it starts an exchange for each store"),
    (
        "hostile",
        "it attacks services that it starts for that, watches their memory, and ends them to see their books",
    ),
    ("pgbench", "it measures a PostgreSQL server without an exchange; --database names one that runs"),
    ("startup", "it measures how services come up from an empty directory"),
    ("store", "it reads and writes a store in its own process, without a service"),
    ("lanes", "it runs lanes in its own process, without HTTP and cryptography"),
    ("scale", "it gives an exchange one, two, … cores, which only the one that starts it can"),
    ("history", "it fills a store in its own process, and opens it again and again"),
    ("audit", "it audits rows that it has made, in its own process"),
];

/// Adds to the commands that measure a process's inside that they refuse `--target`, and why.
///
/// # Panics
/// If there is no such command.
pub(crate) fn refuse_targets(command: Command) -> Command {
    command.mut_subcommand("bench", |bench| {
        INSIDE.iter().fold(bench, |bench, (name, why)| {
            assert!(bench.find_subcommand(name).is_some(), "there is no command {name}");
            bench.mut_subcommand(name, |command| refuse_target(command, why))
        })
    })
}

fn refuse_target(command: Command, why: &'static str) -> Command {
    let refused = move |arg: Arg| {
        arg.help(format!("Refused: {why}")).value_parser(move |_: &str| Err::<String, _>(why.to_owned()))
    };
    // Some have both among the options of scenarios that can load an exchange that runs already.
    if command.get_arguments().any(|arg| arg.get_id() == "target") {
        return command.mut_arg("target", refused).mut_arg("gateway", |arg| arg.hide(true));
    }
    let gateway = Arg::new("gateway").long("gateway").value_name("URL").requires("target").hide(true);
    command.arg(refused(Arg::new("target").long("target").value_name("URL"))).arg(gateway)
}
