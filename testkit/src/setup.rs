//! Bank and exchange of a test: their configuration, and requests to them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::{PATIENCE, must};

/// The status of a plain HTTP GET; 0 if there is no answer.
pub fn get(port: u16, path: &str) -> u16 {
    let attempt = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = attempt().unwrap_or_default();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// The answer of a service to a request.
pub fn ask(port: u16, request: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until a service answers 200.
pub fn wait_for(port: u16, path: &str) {
    let deadline = Instant::now() + PATIENCE;
    while get(port, path) != 200 {
        assert!(Instant::now() < deadline, "port {port} does not answer {path}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The ciphers of denominations.
pub const CS: &str = "CIPHER = CS";
pub const RSA: &str = "CIPHER = RSA\nRSA_KEYSIZE = 1024";

/// The section of a denomination. Deposits and refunds cost a fee.
pub fn coin(name: &str, value: &str, fee: &str, cipher: &str) -> String {
    format!(
        "[coin_{name}]\nVALUE = KUDOS:{value}\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\n\
         DURATION_LEGAL = 3 years\nFEE_WITHDRAW = KUDOS:0\nFEE_DEPOSIT = KUDOS:{fee}\nFEE_REFRESH = KUDOS:0\n\
         FEE_REFUND = KUDOS:{fee}\n{cipher}\n"
    )
}

/// The options that an exchange, its signers and its offline tool share.
pub fn shared_config(home: &Path) -> String {
    format!(
        "[taler]\nCURRENCY = KUDOS\nCURRENCY_ROUND_UNIT = KUDOS:0.01\n\
         [paths]\nTALER_DATA_HOME = {home}\nTALER_RUNTIME_DIR = {home}/run\n\
         [taler-exchange-secmod-rsa]\nLOOKAHEAD_SIGN = 1 day\n[taler-exchange-secmod-cs]\nLOOKAHEAD_SIGN = 1 day\n\
         [taler-exchange-secmod-eddsa]\nLOOKAHEAD_SIGN = 1 day\n",
        home = home.display(),
    )
}

/// The master key in what the offline tool says when it is set up.
pub fn master_key(text: &str) -> String {
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.find(|word| word.len() == 52).unwrap().to_owned()
}

/// Creates a service's key in a file, if it is not there, and returns its public key.
pub fn keygen(file: &str) -> String {
    must(&["signer", "keygen", file]).trim().to_owned()
}

/// Writes a configuration of bank and exchange in `dir` with further options, and returns the file's path. The bank's
/// gateway may be reached at another port.
pub fn config_with(
    dir: &Path,
    (bank_port, gateway_port): (u16, u16),
    exchange_port: u16,
    more: &str,
) -> String {
    let text = format!(
        "{}[bank]\nHTTP_PORT = {bank_port}\nBIND_TO = 127.0.0.1\nSIGNUP_BONUS = KUDOS:100\n\
         [exchange]\nPORT = {exchange_port}\nBASE_URL = http://localhost:{exchange_port}/\nBIND_TO = 127.0.0.1\n\
         [exchange-standalone]\nENABLED = YES\n\
         [exchange-account-1]\nPAYTO_URI = payto://x-taler-bank/localhost/exchange?receiver-name=exchange\n\
         ENABLE_CREDIT = YES\nENABLE_DEBIT = YES\n\
         [exchange-accountcredentials-1]\nWIRE_GATEWAY_URL = http://localhost:{gateway_port}/taler-wire-gateway/exchange/\n\
         {more}{}{}",
        shared_config(&dir.join("home")),
        coin("one", "1", "0", CS),
        coin("two", "2", "0", RSA),
    );
    let file = dir.join("taler.conf");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The same for services at their usual ports, where everything costs a fee.
pub fn config_with_fees(dir: &Path, bank_port: u16, exchange_port: u16, more: &str) -> String {
    let config = config_with(dir, (bank_port, bank_port), exchange_port, more);
    // The last value of an option wins.
    let mut text = std::fs::read_to_string(&config).unwrap();
    for name in ["one", "two"] {
        for fee in ["WITHDRAW", "DEPOSIT", "REFRESH", "REFUND"] {
            text.push_str(&format!("[coin_{name}]\nFEE_{fee} = KUDOS:0.01\n"));
        }
    }
    std::fs::write(&config, text).unwrap();
    config
}

/// More denominations, and fees of the bank.
pub const COINS: &str = "[exchange-standalone]\nWIRE_FEE = KUDOS:0.01\nCLOSING_FEE = KUDOS:0.01\n\
    [coin_some]\nVALUE = KUDOS:0.5\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\nDURATION_LEGAL = 3 years\n\
    FEE_WITHDRAW = KUDOS:0.01\nFEE_DEPOSIT = KUDOS:0.01\nFEE_REFRESH = KUDOS:0.01\nFEE_REFUND = KUDOS:0.01\nCIPHER = CS\n\
    [coin_more]\nVALUE = KUDOS:5\nDURATION_WITHDRAW = 7 days\nDURATION_SPEND = 2 years\nDURATION_LEGAL = 3 years\n\
    FEE_WITHDRAW = KUDOS:0.01\nFEE_DEPOSIT = KUDOS:0.01\nFEE_REFRESH = KUDOS:0.01\nFEE_REFUND = KUDOS:0.01\n\
    CIPHER = RSA\nRSA_KEYSIZE = 1024\n";

/// Limits that nobody reaches, so that every withdrawal and every payment between people is counted.
pub const LIMITS: &str = "[kyc-legitimization-withdraw]\nOPERATION_TYPE = withdraw\nREQUIRED_CHECKS = name\n\
    THRESHOLD = KUDOS:1000000\nTIMEFRAME = 1 day\n\
    [kyc-legitimization-merge]\nOPERATION_TYPE = merge\nREQUIRED_CHECKS = name\n\
    THRESHOLD = KUDOS:1000000\nTIMEFRAME = 1 day\n\
    [kyc-provider-login]\nLOGIC = oauth2\nUSER_TYPE = individual\nPROVIDED_CHECKS = name\n\
    KYC_OAUTH2_VALIDITY = forever\nKYC_OAUTH2_LOGIN_URL = http://localhost:1/\n\
    KYC_OAUTH2_AUTH_URL = http://localhost:1/\nKYC_OAUTH2_INFO_URL = http://localhost:1/\n\
    KYC_OAUTH2_POST_URL = http://localhost:1/\nKYC_OAUTH2_CLIENT_ID = x\nKYC_OAUTH2_CLIENT_SECRET = x\n";

/// The options of an exchange whose rows are in this database.
pub fn on_database(url: &str) -> String {
    format!("[exchange]\nDB = postgres\n[exchangedb-postgres]\nCONFIG = {url}\n")
}

/// Writes the configuration of a merchant backend in `dir` that takes the coins of exchanges, given as URL and master
/// key, with further options, and returns the file's path.
pub fn merchant_config(dir: &Path, port: u16, exchanges: &[(&str, &str)], more: &str) -> String {
    let mut text = "[taler]\nCURRENCY = KUDOS\n".to_owned();
    for (number, (url, master)) in exchanges.iter().enumerate() {
        text.push_str(&format!(
            "[merchant-exchange-{number}]\nEXCHANGE_BASE_URL = {url}\nMASTER_KEY = {master}\nCURRENCY = KUDOS\n"
        ));
    }
    let data = dir.join("merchant");
    text.push_str(&format!(
        "[merchant]\nPORT = {port}\nBIND_TO = 127.0.0.1\nDATA_DIR = {}\n{more}",
        data.display()
    ));
    let file = dir.join("merchant.conf");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The merchant instance of a shop that pays all fees, and whose money is transferred at once.
pub fn shop(name: &str, account: &str, token: &str, max_deposit_fee: &str) -> serde_json::Value {
    serde_json::json!({
        "id": "default", "name": name, "auth": { "method": "token", "token": token },
        "payto_uris": [format!("payto://x-taler-bank/localhost/{account}?receiver-name={account}")],
        "address": {}, "jurisdiction": {},
        "default_max_wire_fee": "KUDOS:1", "default_max_deposit_fee": max_deposit_fee,
        "default_wire_fee_amortization": 1,
        "default_wire_transfer_delay": { "d_us": 0 }, "default_pay_delay": { "d_us": 3_600_000_000_u64 },
    })
}

/// Opens an account at the bank. Its password is its name.
pub fn register(bank_port: u16, name: &str) {
    let body = format!("{{\"username\":\"{name}\",\"password\":\"{name}\"}}");
    let answer = ask(bank_port, "POST /taler-bank-access/testing/register", &body);
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
}

/// Sends credits to the exchange's account over one connection, each for a new reserve.
pub fn credit(bank_port: u16, first: u16, count: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", bank_port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    for n in first..first + count {
        let mut reserve = [7; 32];
        reserve[..2].copy_from_slice(&n.to_le_bytes());
        let body = format!(
            "{{\"reserve_pub\":\"{}\",\"amount\":\"KUDOS:1.25\",\
             \"debit_account\":\"payto://x-taler-bank/localhost/c{n}?receiver-name=c{n}\"}}",
            batzen_crypto::base32::encode(&reserve)
        );
        // In one write, because separate parts would wait for each other's acknowledgements.
        let request = format!(
            "POST /taler-wire-gateway/exchange/admin/add-incoming HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let mut part = [0; 1024];
            let read = stream.read(&mut part).unwrap();
            assert_ne!(read, 0, "the bank answers");
            answer.extend_from_slice(&part[..read]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}
