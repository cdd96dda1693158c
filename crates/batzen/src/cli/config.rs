//! `batzen config`: reads, changes and checks options of the configuration. The first two are those of
//! `taler-config`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use batzen_bank::BankConfig;
use batzen_cli_support::services::Common;
use batzen_config::{Config, Origin};
use batzen_exchange::config::ExchangeConfig;
use batzen_signer::service_config::SignerConfig;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{known_options, ledger, switch};

/// Arguments of `batzen config`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Without --section: every option, its value and its source; secrets are not shown.

Examples:
  batzen config check --config taler.conf
  batzen config --list-sections
  batzen config -s exchange -o BASE_URL
  batzen config -s taler-exchange-secmod-rsa -o KEY_DIR -f
  batzen config -c taler.conf -s exchange -o PORT -V 8181")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
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
    /// Print the value as a file name, with variables expanded
    #[arg(short, long, requires = "option")]
    filename: bool,
    /// Write this value to the configuration file, whose other lines stay as they are
    #[arg(short = 'V', long, value_name = "TEXT", requires = "option")]
    value: Option<String>,
    /// List every option, its value and its source, as without --section
    #[arg(short, long, conflicts_with_all = ["list_sections", "section"])]
    diagnostics: bool,
    /// Print the answer as JSON
    #[arg(long, conflicts_with = "value")]
    json: bool,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check the configuration of every service that the file configures
    ///
    /// Reports invalid values, options that no program reads with the nearest known name, and warnings. Exit
    /// code 1 if it finds anything. Reads no keys, opens no store, and connects to nothing.
    #[command(after_help = "Examples:
  batzen config check --config exchange.conf
  batzen config check --config exchange.conf --json")]
    Check(CheckArgs),
}

/// Options of `config check`.
#[derive(Args)]
struct CheckArgs {
    #[command(flatten)]
    common: Common,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// A configuration that cannot be read or written; a section or option that does not exist.
pub(super) fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    if let Some(ConfigCommand::Check(args)) = args.command {
        return check(&args);
    }
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

/// A service, and whether its configuration can be read.
struct Checked {
    service: &'static str,
    error: Option<String>,
}

fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let Some(file) = args.common.file() else {
        bail!("no configuration file is named and none exists: name the one to check with --config FILE");
    };
    let ini = args.common.load()?;
    let services = check_services(&ini);
    let mut findings: Vec<String> = ini.warnings().to_vec();
    findings.extend(known_options::unknown(&ini));
    if let Ok(exchange) = ExchangeConfig::from_ini(&ini) {
        findings.extend(exchange.warnings());
    }
    if services.is_empty() {
        findings.push("no section of a service: [exchange], [bank], [ledger], [switch], [signer]".to_owned());
    }
    let is_fine = findings.is_empty() && services.iter().all(|service| service.error.is_none());
    let mut answer = String::new();
    if args.json {
        let services = services.iter().map(|checked| (checked.service.to_owned(), json!(checked.error)));
        let services: Map<String, Value> = services.collect();
        answer = json!({ "file": file, "ok": is_fine, "errors": services, "warnings": findings }).to_string();
        answer.push('\n');
    } else {
        for Checked { service, error } in &services {
            answer += &format!("{service:9} {}\n", error.as_deref().unwrap_or("ok"));
        }
        for finding in &findings {
            answer += &format!("warning   {finding}\n");
        }
    }
    std::io::stdout().write_all(answer.as_bytes())?;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the configuration of each service that the operator has written options for. The defaults that are
/// installed beside the program do not count.
fn check_services(ini: &Config) -> Vec<Checked> {
    let is_written = |section: &str| {
        let is_chosen = |origin| !matches!(origin, Origin::Builtin | Origin::Default);
        ini.options(section).any(|(_, value)| is_chosen(value.source.origin))
    };
    let has_account = ini.sections_with(&["exchange-account-"]).any(|(section, _)| is_written(section));
    let mut checked = Vec::new();
    let mut add = |service, is_configured: bool, read: &dyn Fn() -> anyhow::Result<()>| {
        if is_configured {
            let error = read().err().map(|error| batzen_cli_support::program::format_error_chain(&error));
            checked.push(Checked { service, error });
        }
    };
    add("exchange", has_account, &|| Ok(ExchangeConfig::from_ini(ini)?.validate()?));
    add("bank", is_written("bank"), &|| Ok(BankConfig::from_config(ini)?.check()?));
    add("ledger", is_written("ledger"), &|| ledger::ServeConfig::from_ini(ini).map(drop));
    add("switch", is_written("switch"), &|| {
        switch::ledger_address(ini)?;
        switch::from_ini(ini)?.check().map_err(anyhow::Error::msg)
    });
    add("signer", is_written("signer"), &|| Ok(SignerConfig::from_ini(ini).map(drop)?));
    checked
}

/// Writes one option to the file, which is created if it is named but missing.
fn set(common: &Common, section: &str, option: &str, value: &str) -> anyhow::Result<()> {
    let Some(file) = common.file() else {
        bail!("no configuration file is named and none exists: name the one to write with --config FILE");
    };
    common.set(&file, section, option, value)
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

/// The options of a section, without passwords; null for secrets.
fn options(config: &Config, section: &str) -> anyhow::Result<Map<String, Value>> {
    ensure!(config.has_section(section), "section [{section}] does not exist (batzen config -S lists all)");
    let options = config.options(section);
    Ok(options
        .map(|(name, value)| (name.to_owned(), value.shown(name).map_or(Value::Null, Value::String)))
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
