//! Certificate of a listening end: self-signed, so that plain TLS clients get a complete handshake.
//! Diallers do not check it.

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::Error;
use rustls::pki_types::alg_id::{ECDSA_P256, ECDSA_SHA256};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::public_key_to_spki;

/// Common name in the certificate.
const NAME: &[u8] = b"viaduct";
/// Start and end of the validity: this end means that the certificate does not expire (RFC 5280,
/// 4.1.2.5).
const NOT_BEFORE: &[u8] = b"19700101000000Z";
const NOT_AFTER: &[u8] = b"99991231235959Z";
/// Object identifier 2.5.4.3, commonName.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Tags of DER (X.690).
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;

/// Creates a key of ECDSA with P-256, which every client of TLS 1.3 supports, and its certificate.
/// Errors: no random bytes are available.
pub(super) fn self_signed() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), Error> {
    let random = SystemRandom::new();
    let unspecified = |_| Error::FailedToGetRandomBytes;
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(unspecified)?;
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random);
    let pair = pair.map_err(|error| Error::General(error.to_string()))?;
    let mut serial = [0; 16];
    random.fill(&mut serial).map_err(unspecified)?;
    // The serial number must be positive, and have no leading zeros.
    serial[0] = serial[0] & 0x3f | 0x40;
    let body = body(&serial, pair.public_key().as_ref());
    let signature = pair.sign(&random, &body).map_err(unspecified)?;
    let certificate = der(
        SEQUENCE,
        &[&body, &der(SEQUENCE, &[&ECDSA_SHA256]), &der(BIT_STRING, &[&[0], signature.as_ref()])],
    );
    Ok((certificate.into(), PrivateKeyDer::Pkcs8(pkcs8.as_ref().to_vec().into())))
}

/// Signed part of the certificate (TBSCertificate).
fn body(serial: &[u8], key: &[u8]) -> Vec<u8> {
    let kind = der(OBJECT_IDENTIFIER, &[COMMON_NAME]);
    let name = der(SEQUENCE, &[&kind, &der(UTF8_STRING, &[NAME])]);
    let name = der(SEQUENCE, &[&der(SET, &[&name])]);
    let times = [NOT_BEFORE, NOT_AFTER].map(|time| der(GENERALIZED_TIME, &[time]));
    der(
        SEQUENCE,
        &[
            &der(VERSION, &[&der(INTEGER, &[&[2]])]),
            &der(INTEGER, &[serial]),
            &der(SEQUENCE, &[&ECDSA_SHA256]),
            &name,
            &der(SEQUENCE, &[&times[0], &times[1]]),
            &name,
            &public_key_to_spki(&ECDSA_P256, key),
        ],
    )
}

/// DER encoding of a value whose content, the concatenated `parts`, is shorter than 64 KiB.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len();
    let mut out = vec![tag];
    match length {
        0..0x80 => out.push(length as u8),
        0x80..0x100 => out.extend([0x81, length as u8]),
        _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend(content);
    out
}
