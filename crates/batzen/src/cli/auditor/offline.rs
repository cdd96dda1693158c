//! `batzen auditor offline`: approve an exchange's denominations.

use std::process::ExitCode;

use batzen_auditor::offline::{HELP, Offline, OfflineError};
use batzen_cli_support::services::Common;
use clap::Args;

#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct OfflineArgs {
    #[command(flatten)]
    common: Common,
    /// Subcommands with their arguments, executed in order
    #[arg(trailing_var_arg = true, required = true, value_name = "SUB-COMMAND")]
    steps: Vec<String>,
}

pub(super) async fn run(args: OfflineArgs) -> anyhow::Result<ExitCode> {
    let config = super::config(&args.common)?;
    let mut say = |text: &str| eprintln!("{text}");
    let mut input = || std::io::read_to_string(std::io::stdin());
    let mut tool = Offline { config, say: &mut say, input: &mut input };
    match tool.run(&args.steps).await {
        Ok(outcome) => {
            print!("{}", outcome.report);
            if let Some(json) = outcome.documents.to_json() {
                print!("{json}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(OfflineError::Usage(reason)) => {
            eprintln!("batzen: {reason}");
            Ok(ExitCode::from(2))
        }
        Err(error) => Err(error.into()),
    }
}
