//! `batzen wallet backup-file`.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, bail};
use batzen_wallet::backup;
use serde_json::json;

use super::args::{BackupArgs, BackupCommand};
use super::money::read_secret;
use super::output::Output;
use super::{create, look};

/// The shortest passphrase accepted; shorter ones are too easy to guess.
const MIN_PASSPHRASE: usize = 8;

pub(super) fn run(path: &Path, args: &BackupArgs, output: &Output) -> anyhow::Result<u8> {
    match &args.command {
        BackupCommand::Export { file, passphrase_file, insecure } => {
            let wallet = look(path)?;
            let content = if *insecure {
                output.note("Warning: anyone who can read this file can spend the money.");
                backup::to_json(wallet.export()).to_vec()
            } else {
                let passphrase = passphrase(passphrase_file.as_deref(), true)?;
                if passphrase.chars().count() < MIN_PASSPHRASE {
                    bail!("the passphrase is too short: take at least {MIN_PASSPHRASE} characters");
                }
                backup::seal(wallet.export(), &passphrase)
            };
            write_new(file, &content)?;
            let data = json!({ "file": file, "bytes": content.len(), "encrypted": !insecure });
            output.result(&data, &format!("Saved to {}.", file.display()))?;
        }
        BackupCommand::Import { file, passphrase_file } => {
            let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            let changes = match backup::open(&content, None) {
                Err(backup::BackupError::PassphraseNeeded) => {
                    backup::open(&content, Some(&passphrase(passphrase_file.as_deref(), false)?))?
                }
                other => other?,
            };
            let count = changes.len();
            let wallet = create(path)?;
            wallet.import(changes)?;
            let text = format!(
                "Restored {count} records into {}.\nDo not use the original any more: two wallets with the same coins look like a double-spender.\nContinue with `batzen wallet run`.",
                path.display()
            );
            output.result(&json!({ "wallet": path, "records": count }), &text)?;
        }
    }
    Ok(0)
}

/// Reads the passphrase from the file, or a line from standard input. On a terminal it reads without echo,
/// and asks twice for a new passphrase.
fn passphrase(file: Option<&Path>, new: bool) -> anyhow::Result<String> {
    if let Some(file) = file {
        return read_secret(file);
    }
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let term = console::Term::stderr();
    let ask = |prompt: &str| -> anyhow::Result<String> {
        term.write_str(prompt)?;
        Ok(term.read_secure_line()?)
    };
    let passphrase = ask("Passphrase: ")?;
    if new && ask("Repeat it: ")? != passphrase {
        bail!("the passphrases differ");
    }
    Ok(passphrase)
}

/// Writes a file that must not exist yet, readable by its owner only, and syncs it.
pub(super) fn write_new(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.write_all(content)?;
    file.sync_all()?;
    Ok(())
}
