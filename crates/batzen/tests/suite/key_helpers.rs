//! The key helpers as real processes, called by their old names: `taler-exchange-httpd` has no private key.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use batzen_crypto::PlanchetMasterSecret;
use batzen_protocol::api::exchange::CsrWithdrawRequest;

use crate::common::customer::Crowd;
use crate::common::drop_in::DropIn;
use crate::common::setup::{get, wait_for};
use crate::common::{PATIENCE, Service, end, stderr, until};
use crate::crash::coins::{Denom, Shop};

const KINDS: [&str; 3] = ["rsa", "cs", "eddsa"];

fn helper(kind: &str) -> String {
    format!("taler-exchange-secmod-{kind}")
}

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}

/// The key files of a helper, without its lock and those that are still being written.
fn key_files(set_up: &DropIn, kind: &str) -> Vec<PathBuf> {
    let mut files = files_below(&set_up.path(&format!("data/exchange-secmod-{kind}/keys")));
    files.retain(|file| {
        !file.ends_with(".lock") && file.extension().is_none_or(|extension| extension != "tmp")
    });
    files
}

/// The private keys of these kinds, as bytes that memory would contain.
fn secrets(set_up: &DropIn, kinds: &[&str]) -> Vec<Vec<u8>> {
    const HEADER: usize = 17;
    const CHECKSUM: usize = 32;
    let files = kinds.iter().flat_map(|kind| key_files(set_up, kind));
    let secret = |file| {
        let bytes = std::fs::read(file).unwrap();
        bytes[HEADER..bytes.len() - CHECKSUM].to_vec()
    };
    files.map(secret).collect()
}

/// Returns whether the writable memory of a process contains one of these texts.
fn memory_contains(service: &Service, texts: &[Vec<u8>]) -> bool {
    use std::os::unix::fs::FileExt as _;
    let process = format!("/proc/{}", service.child.id());
    let memory = std::fs::File::open(format!("{process}/mem")).unwrap();
    let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (begin, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let (begin, end) = (address(begin), address(end));
        let mut region = vec![0; usize::try_from(end - begin).unwrap()];
        // Some regions cannot be read, or have gone.
        if memory.read_exact_at(&mut region, begin).is_err() {
            continue;
        }
        // Optimised code finds it: there are tens of megabytes.
        if texts.iter().any(|text| memchr::memmem::find(&region, text).is_some()) {
            return true;
        }
    }
    false
}

/// The service has no file of the helpers open.
fn assert_opens_no_keys(service: &Service) {
    for entry in std::fs::read_dir(format!("/proc/{}/fd", service.child.id())).unwrap().map(Result::unwrap) {
        // The file may have been closed meanwhile.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        assert!(!target.to_string_lossy().contains("secmod"), "{} is open", target.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_helpers_sign_for_a_service_that_never_sees_a_private_key() {
    let set_up = DropIn::new("");
    let bank = set_up.start_bank();

    // The service starts first. It says once what is missing and what to do, and waits.
    let mut exchange = set_up.start("taler-exchange-httpd");
    let misses = || set_up.log("taler-exchange-httpd").contains("no answer from the key helpers");
    until("the service does not miss its helpers", misses);
    assert_ne!(get(set_up.exchange_port(), "/management/keys"), 200);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let log = set_up.log("taler-exchange-httpd");
    assert_eq!(log.lines().count(), 1, "{log}");
    for text in KINDS.map(helper).iter().map(String::as_str).chain(["KEY_HELPERS = NO", "server.sock"]) {
        assert!(log.contains(text), "{text}: {log}");
    }
    exchange.assert_runs();

    // With two of three it still waits, and names the third.
    let mut helpers = vec![set_up.start_helper("rsa"), set_up.start_helper("eddsa")];
    until("the service does not name the third", || {
        let log = set_up.log("taler-exchange-httpd");
        let last = log.lines().last().unwrap_or_default().to_owned();
        last.contains("secmod-cs") && !last.contains("secmod-rsa") && !last.contains("secmod-eddsa")
    });
    helpers.insert(1, set_up.start_helper("cs"));
    set_up.sign_everything();

    // Each helper has the keys of its own kind, readable only by its user.
    for (kind, below) in [("rsa", "COIN_TWO"), ("cs", "COIN_ONE"), ("eddsa", "keys")] {
        let files = key_files(&set_up, kind);
        assert!(!files.is_empty(), "{kind}");
        for file in files {
            assert!(file.parent().unwrap().ends_with(below), "{}", file.display());
            assert!(file.file_name().unwrap().to_str().unwrap().parse::<u64>().is_ok(), "{}", file.display());
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        let socket = set_up.path(&format!("run/exchange-secmod-{kind}/server.sock"));
        assert!(socket.metadata().unwrap().file_type().is_socket());
    }
    assert!(!set_up.path("data/exchange-secmod-rsa/keys/COIN_ONE").exists());

    // Customers withdraw and pay while each helper is killed and comes back; no request fails.
    let wirewatch = set_up.start("taler-exchange-wirewatch");
    let mut crowd = Crowd::start(&set_up.customer, 3);
    crowd.go_on(20).await;
    for (number, kind) in KINDS.into_iter().enumerate() {
        helpers[number].kill_9();
        helpers[number] = set_up.start_helper(kind);
        crowd.go_on(20).await;
    }
    crowd.end().await;

    // No private key is or was in the service.
    assert_opens_no_keys(&exchange);
    assert!(memory_contains(&helpers[2], &secrets(&set_up, &["eddsa"])), "the search finds what is there");
    assert!(!memory_contains(&exchange, &secrets(&set_up, &["eddsa", "cs"])));

    // The helpers go on when the service ends, and the next one has its keys at once.
    assert!(exchange.terminate().0.success());
    for helper in &mut helpers {
        helper.assert_runs();
    }
    let exchange = set_up.start("taler-exchange-httpd");
    wait_for(set_up.exchange_port(), "/keys");

    // A helper destroys a revoked key and makes another.
    let client = &set_up.customer.client;
    let denoms = Denom::offered(client, &set_up.customer.url("")).await;
    let revoked = denoms.iter().find(|denom| denom.is_cs()).unwrap();
    let before = secrets(&set_up, &["cs"]);
    set_up.offline(&["revoke-denomination", &revoked.hash.to_string(), "upload"]);
    until("the revoked key is not replaced", || {
        let now = secrets(&set_up, &["cs"]);
        now.len() == before.len() && now != before
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The service may not have heard of the new key yet.
        let _ = set_up.run("taler-exchange-offline", &["download", "sign", "upload"]);
        let keys = set_up.customer.keys().await;
        let others = keys.denoms.iter().filter(|denom| denom.denom_pub.h_denom_pub() != revoked.hash);
        if others.count() == 2 {
            break;
        }
        assert!(Instant::now() < deadline, "no key takes the place of the revoked one");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Without a helper, requests that need it get 503; the others work; the log names it.
    let reserve = set_up.customer.reserve("10").await;
    let (status, _) = helpers.remove(1).terminate();
    assert!(status.success(), "{status}");
    let denoms = Denom::offered(client, &set_up.customer.url("")).await;
    let [cs, rsa] = [true, false].map(|is_cs| denoms.iter().find(|denom| denom.is_cs() == is_cs).unwrap());
    let nonce = PlanchetMasterSecret::generate().cs_nonce();
    let request = CsrWithdrawRequest { nonce, denom_pub_hash: cs.hash };
    let reply = set_up.customer.post("csr-withdraw", &request).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    set_up.customer.withdraw_and_pay(&reserve, rsa, &Shop::new("bakery")).await;
    assert!(set_up.log("taler-exchange-httpd").contains("taler-exchange-secmod-cs was lost"));
    helpers.push(set_up.start_helper("cs"));
    set_up.customer.withdraw_and_pay(&reserve, cs, &Shop::new("bakery")).await;
    end(helpers.into_iter().chain([exchange, wirewatch, bank]));
}

/// Checks the behaviour that a supervisor of a key helper relies on.
#[test]
fn a_key_helper_ends_on_a_signal_and_its_socket_can_be_bound_again_at_once() {
    let set_up = DropIn::new("");
    for kind in KINDS {
        let helper = set_up.start_helper(kind);
        until("the helper makes no keys", || !key_files(&set_up, kind).is_empty());
        let keys = secrets(&set_up, &[kind]);

        // A second one on the same socket is refused with one line.
        let second = set_up.run(&format!("taler-exchange-secmod-{kind}"), &[]);
        assert_eq!(second.status.code(), Some(1));
        let text = stderr(&second);
        assert!(text.contains("in use by another program") && text.lines().count() == 1, "{text}");

        let (status, time) = helper.terminate();
        assert!(status.success(), "{status}");
        // The documentation promises a second on an idle machine; this one may be busy.
        assert!(time < Duration::from_secs(20), "{time:?}");
        let again = set_up.start_helper(kind);
        assert_eq!(secrets(&set_up, &[kind]), keys, "keys survive restarts");
        drop(again);
        // A killed one leaves its socket behind, which does not matter.
        set_up.start_helper(kind).terminate();
    }
    let log = set_up.log("taler-exchange-secmod-rsa");
    assert!(log.contains("/run/exchange-secmod-rsa/server.sock"), "{log}");
}

/// An exchange that keeps its keys itself can hand them to helpers, and take them back.
#[test]
fn keys_of_the_service_and_of_helpers_are_the_same_files() {
    let set_up = DropIn::new("[exchange]\nkey_helpers = NO\n");
    let exchange = set_up.start("taler-exchange-httpd");
    wait_for(set_up.exchange_port(), "/management/keys");
    let keys = secrets(&set_up, &KINDS);
    assert!(!keys.is_empty());
    // They may run beside it; nothing is created twice.
    let helpers = KINDS.map(|kind| set_up.start_helper(kind));
    assert_eq!(secrets(&set_up, &KINDS), keys);
    exchange.terminate();
    set_up.must("taler-config", &["-s", "exchange", "-o", "key_helpers", "-V", "YES"]);
    let exchange = set_up.start("taler-exchange-httpd");
    set_up.sign_everything();
    assert_eq!(secrets(&set_up, &KINDS), keys);
    assert_opens_no_keys(&exchange);

    // Helpers and a master key in the same process contradict each other.
    set_up.must("taler-config", &["-s", "exchange-standalone", "-o", "enabled", "-V", "YES"]);
    let refused = set_up.run("taler-exchange-httpd", &[]);
    assert!(!refused.status.success() && stderr(&refused).contains("KEY_HELPERS"), "{}", stderr(&refused));
    end(helpers.into_iter().chain([exchange]));
}
