//! Measures the protocol's operations on one core.

use std::hint::black_box;

use batzen_crypto::cs::{self, CsBlindRequest, CsOperation, CsRequest, CsSignRequest};
use batzen_crypto::denom::{self, DenomPrivateKey, DenomPublicKey, ExchangeWithdrawValues};
use batzen_crypto::refresh::{self, Candidate, FreshDenom};
use batzen_crypto::{
    BlindingSecret, CoinSecrets, CsPrivateKey, CsSigningKey, CsVerifyingKey, DenomKey, EcdhePrivateKey,
    EddsaPrivateKey, ExpandedSigner, HashCode, Path, PlanchetMasterSecret, RsaPublicKey, TransferSecret,
    base32, ecdh, eddsa, hash, kdf, rsa,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const PATHS: [(&str, Path); 2] = [("library", Path::Library), ("lanes", Path::Lanes)];

fn text(c: &mut Criterion) {
    let mut group = c.benchmark_group("base32");
    for size in [32usize, 64, 256] {
        let data = vec![0xa5; size];
        let encoded = base32::encode(&data);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(format!("encode/{size}"), |b| b.iter(|| base32::encode(black_box(&data))));
        group.bench_function(format!("decode/{size}"), |b| b.iter(|| base32::decode(black_box(&encoded))));
    }
    group.finish();
    c.bench_function("base32/decode_array/32", |b| {
        let encoded = base32::encode(&[0xa5; 32]);
        b.iter(|| base32::decode_array::<32>(black_box(&encoded)));
    });
}

fn hashes(c: &mut Criterion) {
    c.bench_function("sha512/200", |b| b.iter(|| hash::sha512(black_box(&[7; 200]))));
    c.bench_function("kdf/32", |b| {
        b.iter(|| kdf::kdf_array::<32>(black_box(b"coin"), black_box(&[7; 32]), &[]));
    });
    c.bench_function("kdf/256", |b| {
        b.iter(|| kdf::kdf_array::<256>(black_box(b"coin"), black_box(&[7; 32]), &[]));
    });
}

fn curves(c: &mut Criterion) {
    let key = EddsaPrivateKey::generate();
    let signer = ExpandedSigner::new(&key);
    let message = [9; 200];
    c.bench_function("eddsa/public_key", |b| b.iter(|| black_box(&key).public_key()));
    c.bench_function("eddsa/sign/seed", |b| b.iter(|| black_box(&key).sign(&message)));
    c.bench_function("eddsa/sign/expanded", |b| b.iter(|| black_box(&signer).sign(&message)));
    let public = key.public_key();
    let signature = key.sign(&message);
    c.bench_function("eddsa/verify", |b| b.iter(|| eddsa::verify(black_box(&public), &message, &signature)));
    let mut group = c.benchmark_group("eddsa/verify_batch");
    for size in [1usize, 2, 3, 4, 8, 16, 64, 256] {
        let keys: Vec<_> = (0..size).map(|_| EddsaPrivateKey::generate()).collect();
        let signed: Vec<_> = keys.iter().map(|key| (key.public_key(), key.sign(&message))).collect();
        let items: Vec<_> = signed.iter().map(|(public, sig)| (public, &message[..], sig)).collect();
        group.throughput(Throughput::Elements(size as u64));
        for (name, path) in PATHS {
            let verify = || eddsa::verify_batch_with(path, black_box(&items));
            group.bench_function(format!("{name}/{size}"), |b| b.iter(verify));
        }
    }
    group.finish();
    let mut group = c.benchmark_group("eddsa/sign_batch");
    for size in [1usize, 2, 3, 4, 8, 16, 64, 256] {
        let signers: Vec<_> = (0..size).map(|_| ExpandedSigner::new(&EddsaPrivateKey::generate())).collect();
        let items: Vec<_> = signers.iter().map(|signer| (signer, &message[..])).collect();
        group.throughput(Throughput::Elements(size as u64));
        for (name, path) in PATHS {
            let sign = || eddsa::sign_batch_with(path, black_box(&items));
            group.bench_function(format!("{name}/{size}"), |b| b.iter(sign));
        }
    }
    group.finish();
    let keys: Vec<_> = (0..64).map(|_| EcdhePrivateKey::generate()).collect();
    let keys: Vec<_> = keys.iter().collect();
    let pairs: Vec<_> = keys.iter().map(|key| (*key, &public)).collect();
    for size in [1usize, 2, 3, 4, 8, 16, 64] {
        for (name, path) in PATHS {
            let mut group = c.benchmark_group("ecdh");
            group.throughput(Throughput::Elements(size as u64));
            group.bench_function(format!("public_keys/{name}/{size}"), |b| {
                b.iter(|| ecdh::public_keys_with(path, black_box(&keys[..size])));
            });
            group.bench_function(format!("eddsa_pubs/{name}/{size}"), |b| {
                b.iter(|| ecdh::ecdh_eddsa_pubs_with(path, black_box(&pairs[..size])));
            });
            group.finish();
        }
    }
    let ecdhe = EcdhePrivateKey::generate();
    c.bench_function("ecdh/eddsa_pub", |b| b.iter(|| ecdh::ecdh_eddsa_pub(black_box(&ecdhe), &public)));
}

fn rsa_operations(c: &mut Criterion) {
    for bits in [1024, 2048, 3072] {
        let key = rsa::RsaPrivateKey::generate(bits).expect("a valid size");
        let own = key.public();
        let foreign = RsaPublicKey::decode(own.encode()).expect("our own encoding");
        let message = HashCode::random();
        let secret = BlindingSecret::generate();
        let blinded = rsa::blind(own, &message, &secret).expect("an honest key");
        let blind = rsa::sign_batch(&[(&key, blinded.as_slice())]).remove(0).expect("in range");
        let signature = rsa::unblind(own, &blind, &secret).expect("in range");
        assert!(rsa::verify(&foreign, &message, &signature));
        let name = |operation: &str| format!("rsa/{bits}/{operation}");
        c.bench_function(&name("sign"), |b| b.iter(|| rsa::sign_batch(&[(&key, black_box(&blinded[..]))])));
        c.bench_function(&name("verify/own"), |b| {
            b.iter(|| rsa::verify(own, &message, black_box(&signature)));
        });
        c.bench_function(&name("verify/foreign"), |b| {
            b.iter(|| rsa::verify(&foreign, &message, black_box(&signature)));
        });
        let paths = [("library", Path::Library), ("lanes", Path::Lanes)];
        let mut group = c.benchmark_group(name("sign_batch"));
        for count in [1, 2, 3, 4, 8, 64] {
            let batch = vec![(&key, blinded.as_slice()); count];
            group.throughput(Throughput::Elements(count as u64));
            for (label, path) in paths {
                group.bench_function(format!("{label}/{count}"), |b| {
                    b.iter(|| rsa::sign_batch_with(path, black_box(&batch)));
                });
            }
        }
        group.finish();
        for (who, public) in [("own", own), ("foreign", &foreign)] {
            let mut group = c.benchmark_group(name(&format!("verify_batch/{who}")));
            for count in [1, 2, 3, 8, 64] {
                let batch = vec![(public, &message, signature.as_slice()); count];
                group.throughput(Throughput::Elements(count as u64));
                for (label, path) in paths {
                    group.bench_function(format!("{label}/{count}"), |b| {
                        b.iter(|| rsa::verify_batch_with(path, black_box(&batch)));
                    });
                }
            }
            group.finish();
        }
        c.bench_function(&name("fdh"), |b| {
            let extractor = kdf::Extractor::new(own.encode());
            b.iter(|| extractor.extract(message.as_bytes()).expand_mod(own.modulus(), b"RSA-FDA FTpsW!"));
        });
        c.bench_function(&name("blind/own"), |b| b.iter(|| rsa::blind(own, black_box(&message), &secret)));
        c.bench_function(&name("blind/foreign"), |b| {
            b.iter(|| rsa::blind(&foreign, black_box(&message), &secret));
        });
        c.bench_function(&name("unblind"), |b| b.iter(|| rsa::unblind(&foreign, black_box(&blind), &secret)));
    }
}

fn cs_operations(c: &mut Criterion) {
    let key = DenomPrivateKey::generate_cs();
    let denom = key.public(0);
    let master = PlanchetMasterSecret::generate();
    let nonce = master.cs_nonce();
    let values = ExchangeWithdrawValues::derive(&key, &nonce, CsOperation::Withdraw);
    let secrets = CoinSecrets::from_master(&master, &values);
    let (planchet, state) = secrets.prepare(&denom, &values, Some(&nonce), None).expect("an honest key");
    let item = (&key, &planchet, CsOperation::Withdraw);
    let blind = denom::blind_sign_batch(&[item]).remove(0).expect("same cipher");
    let signature = state.unblind(&blind).expect("a valid signature");
    c.bench_function("cs/r_pubs", |b| {
        b.iter(|| ExchangeWithdrawValues::derive(&key, black_box(&nonce), CsOperation::Withdraw));
    });
    c.bench_function("cs/sign", |b| b.iter(|| denom::blind_sign_batch(black_box(&[item]))));
    c.bench_function("cs/prepare", |b| {
        b.iter(|| secrets.prepare(black_box(&denom), &values, Some(&nonce), None));
    });
    c.bench_function("cs/unblind_and_verify", |b| b.iter(|| state.unblind(black_box(&blind))));
    c.bench_function("cs/verify", |b| b.iter(|| denom.verify(black_box(state.h_coin_pub()), &signature)));
}

/// One key, as for a popular denomination.
fn cs_batches(c: &mut Criterion) {
    let key = CsPrivateKey::generate();
    let signing = CsSigningKey::new(key.clone()).expect("not zero");
    let public = CsVerifyingKey::new(&key.public()).expect("a good key");
    let operation = CsOperation::Withdraw;
    let nonces: Vec<_> = (0..256).map(|_| PlanchetMasterSecret::generate().cs_nonce()).collect();
    let signed: Vec<_> = nonces
        .iter()
        .map(|nonce| {
            let message = HashCode::random();
            let r_pubs = cs::r_pubs(&key, nonce, operation);
            let (challenges, unblind) =
                cs::blind(&public, &r_pubs, &message, &BlindingSecret::generate()).expect("an honest key");
            let challenges = [&challenges[0], &challenges[1]];
            let blind = cs::sign_batch(&[CsSignRequest { key: &signing, nonce, operation, challenges }])[0]
                .expect("an honest request");
            (message, unblind.unblind(&blind).expect("a valid signature"))
        })
        .collect();
    let requests: Vec<_> = nonces.iter().map(|nonce| CsRequest { key: &key, nonce, operation }).collect();
    let items: Vec<_> = signed.iter().map(|(message, signature)| (&public, message, signature)).collect();
    let r_pubs: Vec<_> = nonces.iter().map(|nonce| cs::r_pubs(&key, nonce, operation)).collect();
    let seed = BlindingSecret::generate();
    let blindings: Vec<_> = r_pubs
        .iter()
        .zip(&signed)
        .map(|([r0, r1], (message, _))| CsBlindRequest {
            key: &public,
            r_pubs: [r0, r1],
            message,
            seed: &seed,
        })
        .collect();
    for size in [1usize, 2, 3, 4, 8, 64, 256] {
        for (name, path) in PATHS {
            let mut group = c.benchmark_group("cs");
            group.throughput(Throughput::Elements(size as u64));
            group.bench_function(format!("r_pubs_batch/{name}/{size}"), |b| {
                b.iter(|| cs::r_pubs_batch_with(path, black_box(&requests[..size])));
            });
            group.bench_function(format!("blind_batch/{name}/{size}"), |b| {
                b.iter(|| cs::blind_batch_with(path, black_box(&blindings[..size])));
            });
            group.bench_function(format!("verify_batch/{name}/{size}"), |b| {
                b.iter(|| cs::verify_batch_with(path, black_box(&items[..size])));
            });
            group.finish();
        }
    }
}

fn refreshes(c: &mut Criterion) {
    let rsa = DenomPrivateKey::generate_rsa(2048).expect("a valid size");
    let own = rsa.public(0);
    let DenomKey::Rsa(key) = &own.key else { unreachable!("an RSA key was made") };
    let decoded = RsaPublicKey::decode(key.encode()).expect("our own encoding");
    let foreign = DenomPublicKey { age_mask: 0, key: DenomKey::Rsa(decoded) };
    let old = EddsaPrivateKey::generate().public_key();
    let transfer = EcdhePrivateKey::generate();
    for (name, denom) in [("exchange", &own), ("wallet", &foreign)] {
        let fresh = [FreshDenom { denom, values: ExchangeWithdrawValues::Rsa }; 8];
        let secret = TransferSecret::from_bytes([7; 64]);
        for count in [1, 2, 3, 4, 8, 64] {
            let candidates =
                [Candidate { secret: &secret, fresh: &fresh[..1], rms: None, old_age: None }; 64];
            let mut group = c.benchmark_group(format!("refresh/planchets/{name}"));
            group.throughput(Throughput::Elements(count as u64));
            for (label, path) in PATHS {
                group.bench_function(format!("{label}/{count}"), |b| {
                    b.iter(|| refresh::derive_candidates_with(path, black_box(&candidates[..count])));
                });
            }
            group.finish();
        }
        let mut group = c.benchmark_group("refresh/candidate");
        group.throughput(Throughput::Elements(8));
        group.bench_function(format!("{name}/8"), |b| {
            b.iter(|| refresh::recompute_candidate(black_box(&transfer), &old, &fresh, None, None));
        });
        group.finish();
    }
}

criterion_group!(benches, text, hashes, curves, rsa_operations, cs_operations, cs_batches, refreshes);
criterion_main!(benches);
