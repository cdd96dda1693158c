//! Wallets whose process is killed at every point of a script.

use std::path::Path;

use batzen_wallet::{Wallet, WalletError};

use super::{World, check_history};

/// Runs a script undisturbed, then once for each point at which the network lets the process die. There it is killed,
/// and `next` points after its restart it is killed a second time. Returns the number of points.
///
/// `begin` prepares a new world, `open` opens the wallets of a life, and `check` gets the wallets that have lived
/// through the script, with their directory and a text that names the point.
pub async fn kill_at_every_point<S, W>(
    next: i64,
    begin: impl AsyncFn(&World) -> S,
    open: impl Fn(&World, &Path, u64) -> W,
    live: impl AsyncFn(&World, &W, &S) -> Result<(), WalletError>,
    mut check: impl FnMut(&World, &S, W, &Path, &str),
) -> i64 {
    let mut n = 0;
    loop {
        n += 1;
        let directory = tempfile::tempdir().unwrap();
        let world = World::new().await;
        let setting = begin(&world).await;
        // n = 1 runs the script undisturbed.
        world.network.set_fuse(n - 1);
        let mut lives = 0;
        let wallets = loop {
            lives += 1;
            let wallets = open(&world, directory.path(), 100 * n as u64 + lives);
            let is_alive = tokio::select! {
                result = live(&world, &wallets, &setting) => { result.unwrap(); true }
                () = world.network.died() => false,
            };
            if is_alive {
                break wallets;
            }
            world.network.set_fuse(if lives == 1 { next } else { 0 });
        };
        check(&world, &setting, wallets, directory.path(), &format!("death at point {}", n - 1));
        if n > 1 && lives == 1 {
            return n;
        }
    }
}

/// Opens the wallet of a directory, which may have been killed. Operations that it left open count in its history.
pub fn open_wallet(world: &World, directory: &Path, seed: u64) -> Wallet {
    let wallet = Wallet::open_with(&directory.join("wallet.db"), world.options(seed)).unwrap();
    check_history(&wallet);
    wallet
}
