//! `batzen-lab`: the laboratory beside the product. It parses arguments and runs the command (`cli`).
//!
//! Standard output carries data only; everything else goes to standard error.

mod cli;

use std::process::ExitCode;

use batzen_cli_support::{allocator, examples, program};
use clap::{CommandFactory, FromArgMatches, Parser};

/// Show, load and measure Batzen: demonstrations, benchmarks, simulated participants, an example shop.
#[derive(Parser)]
#[command(
    name = "batzen-lab",
    version,
    propagate_version = true,
    disable_version_flag = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Examples:\n  batzen-lab demo                           a whole round of digital cash on this machine\n  \
                  batzen-lab bench deposit --duration 10    payments per second of this machine"
)]
struct Cli {
    #[command(flatten)]
    log: program::LogArgs,
    /// Print the version
    #[arg(short = 'v', short_alias = 'V', long, global = true, action = clap::ArgAction::Version)]
    version: Option<bool>,
    #[command(subcommand)]
    command: cli::Command,
}

/// The tree of all commands, with their help.
fn command() -> clap::Command {
    cli::refuse_targets(examples::add(Cli::command(), cli::EXAMPLES))
}

fn main() -> ExitCode {
    allocator::set_up();
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let service = format!("batzen-lab-{}", matches.subcommand_name().unwrap_or_default());
    program::run("batzen-lab", service, cli.log, || cli::run(cli.command))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_tree_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn measurements_of_a_process_refuse_a_target_and_all_others_take_one() {
        let bench = super::command().find_subcommand("bench").unwrap().clone();
        let no_measurements = ["report", "table", "figures", "compare", "ceiling"];
        for command in
            bench.get_subcommands().filter(|command| !no_measurements.contains(&command.get_name()))
        {
            let name = command.get_name();
            let target = command.get_arguments().find(|arg| arg.get_id() == "target").unwrap();
            let help = target.get_help().unwrap().to_string();
            let words = ["batzen-lab", "bench", name, "--target", "http://127.0.0.1:1/"];
            let refused = super::command().try_get_matches_from(words).unwrap_err().to_string();
            match help.strip_prefix("Refused: ") {
                Some(why) => assert!(refused.contains(why), "{name}: {refused}"),
                // An exchange takes test transfers only through its gateway.
                None => assert!(refused.contains("--gateway <URL>"), "{name}: {refused}"),
            }
        }
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        batzen_cli_support::examples::check(super::command, 30);
    }
}
