//! `batzen config`: reads and changes options of the configuration, as `taler-config` does.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use batzen_cli_support::services::Common;
use batzen_config::Config;
use clap::Args;
use serde_json::{Map, Value, json};

/// Arguments of `batzen config`.
#[derive(Args)]
#[command(after_help = "Without --section: every option, its value and its source; secrets are not shown.

Examples:
  batzen config --list-sections
  batzen config -s exchange -o BASE_URL
  batzen config -s taler-exchange-secmod-rsa -o KEY_DIR -f
  batzen config -c taler.conf -s exchange -o PORT -V 8181")]
pub struct ConfigArgs {
    #[command(flatten)]
    common: Common,
    /// List the sections
    #[arg(short = 'S', long, conflicts_with_all = ["section", "option", "value", "filename"])]
    list_sections: bool,
    /// The section; without --option, all its options are listed
    #[arg(short, long, value_name = "NAME")]
    section: Option<String>,
    /// The option to print
    #[arg(short, long, value_name = "NAME", requires = "section")]
    option: Option<String>,
    /// Expand variables in the value, as in a file name
    #[arg(short, long, requires = "option", conflicts_with = "value")]
    filename: bool,
    /// Write this value to the configuration file; comments in the file are lost
    #[arg(short = 'V', long, value_name = "TEXT", requires = "option")]
    value: Option<String>,
    /// Print the answer as JSON
    #[arg(long, conflicts_with = "value")]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// A configuration that cannot be read or written; a section or option that does not exist.
pub fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    if let (Some(section), Some(option), Some(value)) = (&args.section, &args.option, &args.value) {
        set(&args.common, section, option, value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.common.load()?;
    let (value, text) = match (&args.section, &args.option) {
        (None, _) if args.list_sections => {
            let names: Vec<&str> = config.sections().collect();
            (json!(names), names.iter().map(|name| format!("{name}\n")).collect())
        }
        (None, _) => (whole(&config), config.dump()),
        (Some(section), None) => {
            let options = options(&config, section)?;
            let text = options.iter().map(|(name, value)| format!("{name} = {}\n", shown(value))).collect();
            (Value::Object(options), text)
        }
        (Some(section), Some(option)) => {
            let value = value_of(&config, section, option, args.filename)?;
            (json!(value), format!("{value}\n"))
        }
    };
    let answer = if args.json { format!("{value}\n") } else { text };
    std::io::stdout().write_all(answer.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes one option to the file, which is created if it is named but missing.
fn set(common: &Common, section: &str, option: &str, value: &str) -> anyhow::Result<()> {
    let Some(file) = common.file() else {
        bail!("no configuration file is named and none exists: name the one to write with --config FILE");
    };
    let mut config = match file.exists() {
        true => common.load()?,
        false => Config::default(),
    };
    config.set(section, option, value)?;
    config.save(&file)?;
    Ok(())
}

fn value_of(config: &Config, section: &str, option: &str, expand: bool) -> anyhow::Result<String> {
    ensure!(config.has_section(section), "section [{section}] does not exist (batzen config -S lists all)");
    let text = config.text(section, option).with_context(|| {
        format!("section [{section}] has no option {option} (batzen config -s {section} lists those it has)")
    })?;
    match expand {
        true => config.expand(text).map_err(|reason| anyhow::anyhow!("[{section}] {option}: {reason}")),
        false => Ok(text.to_owned()),
    }
}

/// The options of a section; null for secrets.
fn options(config: &Config, section: &str) -> anyhow::Result<Map<String, Value>> {
    ensure!(config.has_section(section), "section [{section}] does not exist (batzen config -S lists all)");
    let options = config.options(section);
    Ok(options
        .map(|(name, value)| {
            let text = if value.is_secret(name) { Value::Null } else { json!(value.text) };
            (name.to_owned(), text)
        })
        .collect())
}

fn whole(config: &Config) -> Value {
    let sections = config.sections();
    let sections =
        sections.filter_map(|name| Some((name.to_owned(), Value::Object(options(config, name).ok()?))));
    Value::Object(sections.collect())
}

fn shown(value: &Value) -> &str {
    value.as_str().unwrap_or("(not shown)")
}
