//! Man pages and shell completions, generated from the same definitions as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

#[derive(Args)]
#[command(
    after_help = "Example:\n  batzen completions bash > ~/.local/share/bash-completion/completions/batzen"
)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

#[derive(Args)]
#[command(after_help = "Example:\n  batzen man --out ./man && man ./man/batzen-exchange.1")]
pub struct ManArgs {
    /// Directory for the pages, one per command; created if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints the completion script for a shell.
pub fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut command = crate::command();
    clap_complete::generate(args.shell, &mut command, "batzen", &mut std::io::stdout());
    ExitCode::SUCCESS
}

/// Writes a man page for each command.
///
/// # Errors
/// If the directory cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let failed = || format!("write man pages to {}", args.out.display());
    std::fs::create_dir_all(&args.out).with_context(failed)?;
    clap_mangen::generate_to(crate::command(), &args.out).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
