//! `batzen`: the single binary. It parses arguments, sets up logging, and runs the command (`cli`).
//!
//! Standard output carries data only; everything else goes to standard error.

mod cli;
mod names;

use std::process::ExitCode;

use batzen_cli_support::{allocator, examples, program};
use clap::{CommandFactory, FromArgMatches, Parser};

/// Digital cash at central-bank scale: bank, exchange and wallet in one binary.
#[derive(Parser)]
#[command(
    name = "batzen",
    version,
    propagate_version = true,
    disable_version_flag = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Examples:\n  batzen demo            a whole round of digital cash on this machine\n  batzen demo --once     the same, and exit"
)]
struct Cli {
    #[command(flatten)]
    log: program::LogArgs,
    /// Print the version
    #[arg(short = 'v', long, global = true, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// The same; not available below commands, because `config` has an option of this name.
    #[arg(short = 'V', id = "version_too", hide = true, action = clap::ArgAction::Version)]
    version_too: Option<bool>,
    #[command(subcommand)]
    command: cli::Command,
}

/// The tree of all commands, with their help.
fn command() -> clap::Command {
    examples::add(Cli::command(), cli::EXAMPLES)
}

/// The exit code of a program that existing set-ups call but that does nothing here. Their units do not restart a
/// program that ends with it.
const NOT_HERE: u8 = 9;

fn main() -> ExitCode {
    allocator::set_up();
    let arguments = match names::native_arguments(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(reason) => {
            eprintln!("batzen: {reason}");
            return ExitCode::from(NOT_HERE);
        }
    };
    let matches = command().try_get_matches_from(arguments).unwrap_or_else(|error| {
        if let Some(words) = cli::in_the_laboratory(&error) {
            eprintln!("batzen: `{words}` is a command of the laboratory: batzen-lab {words}");
            std::process::exit(2);
        }
        error.exit()
    });
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let service = format!("batzen-{}", matches.subcommand_name().unwrap_or_default());
    program::run("batzen", service, cli.log, || cli::run(cli.command))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_tree_is_sound() {
        super::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_that_parse() {
        batzen_cli_support::examples::check(super::command, 60);
    }
}
