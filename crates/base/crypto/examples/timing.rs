//! Tests operations for timing leaks, as dudect does (Reparaz, Balasch, Verbauwhede 2017): every operation
//! runs with inputs of two classes in random order, and Welch's t-test compares the mean times. A large |t|
//! is a leak; a small one is no proof, but more measurements give more confidence.
//!
//! `make timing-test`, or
//! `cargo run --release -p batzen-crypto --example timing -- [MEASUREMENTS] [PART OF A NAME]`. Exits with
//! status 1 if a case leaks, or if the control, which leaks on purpose, was not detected.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use batzen_crypto::cs::{self, CsBlindRequest, CsOperation, CsRequest};
use batzen_crypto::{
    BlindingSecret, CsNonce, CsPrivateKey, CsRPub, CsVerifyingKey, EcdhePrivateKey, EcdhePublicKey,
    EddsaPrivateKey, ExpandedSigner, HashCode, Path, RsaPrivateKey, RsaPublicKey, ecdh, eddsa, fill_random,
    rsa,
};

/// A |t| above this value is no coincidence.
const LEAK_T: f64 = 10.0;
/// Initial measurements of each class, which warm up the caches and define outliers.
const WARM_UP: usize = 500;

/// An operation whose inputs are in the same memory for both classes.
struct Case {
    name: &'static str,
    /// Whether the classes differ on purpose.
    leaks: bool,
    /// Prepares inputs of a class: fixed or random.
    prepare: Box<dyn FnMut(bool)>,
    /// The measured operation.
    run: Box<dyn FnMut()>,
}

/// Two closures on the same inputs.
fn case<T: 'static>(
    name: &'static str,
    inputs: T,
    mut prepare: impl FnMut(&mut T, bool) + 'static,
    mut run: impl FnMut(&T) + 'static,
) -> Case {
    let shared = std::rc::Rc::new(std::cell::RefCell::new(inputs));
    let other = shared.clone();
    Case {
        name,
        leaks: false,
        prepare: Box::new(move |fixed| prepare(&mut other.borrow_mut(), fixed)),
        run: Box::new(move || run(&shared.borrow())),
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill_random(&mut bytes);
    bytes
}

/// Selects one of two values with the same instructions, so that the preparation does not influence the
/// measurement.
fn choose(fixed: bool, number: u8) -> [u8; 32] {
    let candidates = [random(), [number; 32]];
    candidates[usize::from(fixed)]
}

/// Eight keys: the same each time, or different ones.
fn signers(fixed: bool) -> Vec<ExpandedSigner> {
    let key = |i| EddsaPrivateKey::from_bytes(choose(fixed, i));
    (0..8).map(|i| ExpandedSigner::new(&key(i))).collect()
}

fn sign(path: Path) -> impl FnMut(&Vec<ExpandedSigner>) {
    move |signers| {
        let items: Vec<_> = signers.iter().map(|signer| (signer, &b"message"[..])).collect();
        black_box(eddsa::sign_batch_with(path, &items));
    }
}

type CsInputs = (CsPrivateKey, Vec<CsNonce>);

/// A key and nonces from which the secret scalars are derived.
fn cs_inputs(fixed: bool) -> CsInputs {
    let mut key = choose(fixed, 1);
    // Below the group order.
    key[31] &= 0x0f;
    let nonce = |i| CsNonce::from_bytes(choose(fixed, i));
    (CsPrivateKey::from_bytes(key), (0..4).map(nonce).collect())
}

fn r_pubs((key, nonces): &CsInputs) {
    let operation = CsOperation::Withdraw;
    let items: Vec<_> = nonces.iter().map(|nonce| CsRequest { key, nonce, operation }).collect();
    black_box(cs::r_pubs_batch_with(Path::Lanes, &items));
}

/// Keys and blinded messages.
type RsaInputs = Vec<(RsaPrivateKey, Vec<u8>)>;

fn rsa_sign(path: Path) -> impl FnMut(&RsaInputs) {
    move |inputs| {
        let items: Vec<_> = inputs.iter().map(|(key, blinded)| (key, blinded.as_slice())).collect();
        for result in black_box(rsa::sign_batch_with(path, &items)) {
            assert!(result.is_ok(), "the blinded messages are in range");
        }
    }
}

/// A denomination's key, and the blinding secrets of eight coins.
type BlindInputs = (RsaPublicKey, Vec<BlindingSecret>);

fn blinding_secrets(fixed: bool) -> Vec<BlindingSecret> {
    (0..8).map(|i| BlindingSecret::from_bytes(choose(fixed, i))).collect()
}

/// Nearly every first try is below it. The number of tries reveals nothing about the result, but this test
/// would detect it.
fn largest_modulus() -> RsaPublicKey {
    let key = RsaPublicKey::from_parts(&[0xff; 256], &[1, 0, 1]).expect("an odd number");
    RsaPublicKey::decode_own(key.encode()).expect("its own encoding")
}

fn rsa_blind((key, secrets): &BlindInputs) {
    let message = HashCode::from_bytes([7; 64]);
    let items: Vec<_> = secrets.iter().map(|secret| (key, &message, secret)).collect();
    black_box(rsa::blind_batch_with(Path::Lanes, &items));
}

type CsBlindInputs = (CsVerifyingKey, [CsRPub; 2], Vec<BlindingSecret>);

fn cs_blind_inputs() -> CsBlindInputs {
    let key = CsPrivateKey::generate();
    let r_pubs = cs::r_pubs(&key, &CsNonce::from_bytes([3; 32]), CsOperation::Withdraw);
    let public = CsVerifyingKey::new(&key.public()).expect("a good key");
    (public, r_pubs, blinding_secrets(true))
}

/// The messages are random, because the number of tries for a challenge depends on the message and on the
/// blinded value.
fn cs_blind((key, [r0, r1], secrets): &CsBlindInputs) {
    let message = HashCode::from_bytes(random());
    let items: Vec<_> = secrets
        .iter()
        .map(|seed| CsBlindRequest { key, r_pubs: [r0, r1], message: &message, seed })
        .collect();
    black_box(cs::blind_batch_with(Path::Lanes, &items));
}

/// Eight private keys.
fn ecdhe_keys(fixed: bool) -> Vec<EcdhePrivateKey> {
    (0..8).map(|i| EcdhePrivateKey::from_bytes(choose(fixed, i))).collect()
}

fn exchange(keys: &[EcdhePrivateKey]) {
    let public = EcdhePublicKey::from_bytes([9; 32]);
    let items: Vec<_> = keys.iter().map(|key| (key, &public)).collect();
    black_box(ecdh::ecdh_batch_with(Path::Lanes, &items));
    black_box(ecdh::public_keys_with(Path::Lanes, &keys.iter().collect::<Vec<_>>()));
}

/// A blinded message below every modulus of the size.
fn rsa_message(bits: u32) -> Vec<u8> {
    let mut message = vec![0; bits as usize / 8];
    fill_random(&mut message);
    message[0] &= 0x7f;
    message
}

/// Eight keys with one value or with many, and random messages.
fn rsa_exponents(name: &'static str, path: Path, bits: u32) -> Case {
    // The same number of objects for both classes, so that caches behave alike. They alternate, so that both
    // also need fresh blinding factors equally often.
    const KEYS: usize = 24;
    let generate = || RsaPrivateKey::generate(bits).expect("a valid size");
    let der = generate().to_der().expect("memory");
    let same: Vec<_> = (0..KEYS).map(|_| RsaPrivateKey::from_der(&der).expect("our own key")).collect();
    let different: Vec<_> = (0..KEYS).map(|_| generate()).collect();
    let pools = [different, same];
    let mut next = [0; 2];
    let mut inputs = move |fixed: bool| -> RsaInputs {
        let class = usize::from(fixed);
        next[class] += 8;
        (0..8).map(|i| (pools[class][(next[class] + i) % KEYS].clone(), rsa_message(bits))).collect()
    };
    case(name, inputs(true), move |place, fixed| *place = inputs(fixed), rsa_sign(path))
}

/// One key with messages of one value or of many.
fn rsa_messages(name: &'static str, path: Path, bits: u32) -> Case {
    let key = RsaPrivateKey::generate(bits).expect("a valid size");
    let one = rsa_message(bits);
    let inputs = move |fixed: bool| -> RsaInputs {
        let message = || {
            let candidates = [rsa_message(bits), one.clone()];
            candidates[usize::from(fixed)].clone()
        };
        (0..8).map(|_| (key.clone(), message())).collect()
    };
    case(name, inputs(true), move |place, fixed| *place = inputs(fixed), rsa_sign(path))
}

fn cases() -> Vec<Case> {
    let refill = |inputs: &mut Vec<ExpandedSigner>, fixed: bool| *inputs = signers(fixed);
    // Stops at the first byte that differs.
    let control = case(
        "control: a comparison that stops early",
        [0u8; 4096],
        |bytes, fixed| *bytes = if fixed { [0; 4096] } else { [1; 4096] },
        |bytes| {
            black_box(black_box(bytes).iter().all(|&byte| byte == 0));
        },
    );
    vec![
        Case { leaks: true, ..control },
        case("eddsa/sign_batch/lanes", signers(true), refill, sign(Path::Lanes)),
        case("eddsa/sign_batch/library", signers(true), refill, sign(Path::Library)),
        case("cs/r_pubs_batch/lanes", cs_inputs(true), |i, fixed| *i = cs_inputs(fixed), r_pubs),
        case("ecdh/batch/lanes", ecdhe_keys(true), |i, fixed| *i = ecdhe_keys(fixed), |keys| exchange(keys)),
        case(
            "rsa/2048/blind_batch/lanes",
            (largest_modulus(), blinding_secrets(true)),
            |inputs, fixed| inputs.1 = blinding_secrets(fixed),
            rsa_blind,
        ),
        case(
            "cs/blind_batch/lanes",
            cs_blind_inputs(),
            |inputs, fixed| inputs.2 = blinding_secrets(fixed),
            cs_blind,
        ),
        rsa_exponents("rsa/1024/sign_batch/lanes, exponents", Path::Lanes, 1024),
        rsa_messages("rsa/1024/sign_batch/lanes, messages", Path::Lanes, 1024),
        rsa_exponents("rsa/2048/sign_batch/lanes, exponents", Path::Lanes, 2048),
        rsa_messages("rsa/2048/sign_batch/lanes, messages", Path::Lanes, 2048),
    ]
}

/// Running mean and variance (Welford).
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn push(&mut self, value: f64) {
        self.count += 1.0;
        let delta = value - self.mean;
        self.mean += delta / self.count;
        self.squares += delta * (value - self.mean);
    }
}

fn welch([a, b]: &[Moments; 2]) -> f64 {
    let error = |m: &Moments| m.squares / (m.count - 1.0) / m.count;
    if a.count < 2.0 || b.count < 2.0 {
        return 0.0;
    }
    (a.mean - b.mean) / (error(a) + error(b)).sqrt().max(f64::MIN_POSITIVE)
}

/// The largest |t| over several limits for outliers, since interrupts would hide small differences.
fn measure(case: &mut Case, measurements: usize) -> f64 {
    const QUANTILES: [f64; 5] = [0.5, 0.75, 0.9, 0.97, 1.0];
    let mut first = Vec::with_capacity(2 * WARM_UP);
    let mut limits = [f64::MAX; QUANTILES.len()];
    let mut moments = [[Moments::default(); 2]; QUANTILES.len()];
    for number in 0..2 * WARM_UP + measurements {
        let fixed = random::<1>()[0] & 1 == 0;
        (case.prepare)(fixed);
        let start = Instant::now();
        (case.run)();
        let time_ns = start.elapsed().as_nanos() as f64;
        if number < 2 * WARM_UP {
            first.push(time_ns);
            if number + 1 == 2 * WARM_UP {
                first.sort_by(f64::total_cmp);
                for (limit, quantile) in limits.iter_mut().zip(QUANTILES) {
                    let index = (quantile * first.len() as f64) as usize;
                    *limit = first.get(index).copied().unwrap_or(f64::MAX);
                }
            }
            continue;
        }
        for (limit, moments) in limits.iter().zip(&mut moments) {
            if time_ns <= *limit {
                moments[usize::from(fixed)].push(time_ns);
            }
        }
    }
    moments.iter().map(|classes| welch(classes).abs()).fold(0.0, f64::max)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let measurements = arguments.next().map_or(Ok(100_000), |text| text.parse());
    let Ok(measurements) = measurements else {
        eprintln!("usage: timing [MEASUREMENTS] [PART OF A NAME]");
        return ExitCode::from(2);
    };
    let part = arguments.next().unwrap_or_default();
    let mut as_expected = true;
    for mut case in cases().into_iter().filter(|case| case.name.contains(&part)) {
        let t = measure(&mut case, measurements);
        let verdict = match (t > LEAK_T, case.leaks) {
            (true, true) => "leaks, as expected",
            (false, false) => "no leak found",
            (true, false) => "LEAKS",
            (false, true) => "NOT CAUGHT: too few measurements",
        };
        as_expected &= (t > LEAK_T) == case.leaks;
        println!("{:<45} |t| {t:>8.2}  {verdict}", case.name);
    }
    if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
