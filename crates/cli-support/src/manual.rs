//! Man pages and shell completions, generated from the same definitions as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};

/// Options of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Directory for the pages, one per command; created if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints the completion script for a shell.
#[must_use]
pub fn completions(args: &CompletionsArgs, mut command: Command) -> ExitCode {
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut std::io::stdout());
    ExitCode::SUCCESS
}

/// Writes a man page for each command.
///
/// # Errors
/// If the directory cannot be written.
pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    let failed = || format!("write man pages to {}", args.out.display());
    std::fs::create_dir_all(&args.out).with_context(failed)?;
    clap_mangen::generate_to(command, &args.out).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
