//! Keys of the exchanges of a process: made once for each URL and set of denominations, because RSA keys take a while.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use batzen_exchange::config::ExchangeConfig;
use batzen_signer::SecurityModules;
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::START;

/// The directories of keys, by the sections of the configuration and the URL: no two exchanges have the same keys.
static MADE: LazyLock<Mutex<HashMap<Vec<String>, Arc<TempDir>>>> = LazyLock::new(Mutex::default);

/// Copies the keys that this configuration needs at [`START`] into its directory.
pub(super) async fn copy_to(config: &ExchangeConfig, directory: &Path) {
    let mut sections: Vec<String> = config.coins.iter().map(|coin| coin.section.clone()).collect();
    sections.push(config.base_url.clone());
    let mut made = MADE.lock().await;
    let keys = match made.get(&sections) {
        Some(keys) => Arc::clone(keys),
        None => {
            let keys = Arc::new(tempfile::tempdir().expect("a directory"));
            make(config, directory, keys.path()).await;
            made.insert(sections, Arc::clone(&keys));
            keys
        }
    };
    drop(made);
    copy(keys.path(), directory);
}

async fn make(config: &ExchangeConfig, directory: &Path, keys: &Path) {
    let mut config = config.keys_config();
    for module in [&mut config.rsa, &mut config.cs, &mut config.eddsa] {
        for path in [&mut module.key_dir, &mut module.sm_priv_key] {
            *path = keys.join(path.strip_prefix(directory).expect("keys are in the directory"));
        }
    }
    let modules = SecurityModules::open(&config).expect("no keys yet");
    modules.create_own().expect("keys of the modules");
    modules.generate(START, 2, &|_, _| {}).await.expect("keys");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file");
        }
    }
}
