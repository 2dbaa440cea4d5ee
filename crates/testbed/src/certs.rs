//! Throw-away certificates for the parts that speak TLS.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::folder::write_private;

/// A certificate authority that lives as long as the part that made it.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Who a certificate is for.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The common name: the user name, for Kubernetes.
    pub name: String,
    /// The organisation: the group, for Kubernetes.
    pub group: Option<String>,
    /// DNS names and addresses it may serve as; none for a client.
    pub hosts: Vec<String>,
}

/// A key for signing tokens: the private half (PKCS#8) and the public half, as PEM.
pub(crate) fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate().context("make a signing key")?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key (PKCS#8).
    pub key: String,
}

/// A certificate with its key and authority, in files.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority of this name.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().context("make the authority's key")?;
        let pem = params.self_signed(&key).context("sign the authority's certificate")?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Its certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its private key as PEM, for a part that issues certificates itself.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate good for both ends of a connection.
    pub fn issue(&self, subject: &Subject) -> Result<Issued> {
        let what = || format!("issue a certificate for {}", subject.name);
        let mut params = CertificateParams::new(subject.hosts.clone()).with_context(what)?;
        params.distinguished_name.push(DnType::CommonName, subject.name.as_str());
        if let Some(group) = &subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group.as_str());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().with_context(what)?;
        let certificate = params.signed_by(&key, &self.issuer).with_context(what)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Issues a certificate to a workload of a mesh, whose only name is its identity
    /// (`spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT`).
    pub fn issue_workload(&self, identity: &str) -> Result<Issued> {
        let what = || format!("issue a certificate for {identity}");
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::URI(identity.try_into().with_context(what)?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().with_context(what)?;
        let certificate = params.signed_by(&key, &self.issuer).with_context(what)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Issues a certificate into `STEM.crt`, `STEM.key` and `ca.crt` in `folder`.
    pub fn issue_files(&self, subject: &Subject, folder: &Path, stem: &str) -> Result<CertificateFiles> {
        let issued = self.issue(subject)?;
        Ok(CertificateFiles {
            authority: write_private(&folder.join("ca.crt"), &self.pem)?,
            certificate: write_private(&folder.join(format!("{stem}.crt")), &issued.certificate)?,
            key: write_private(&folder.join(format!("{stem}.key")), &issued.key)?,
        })
    }
}

impl Subject {
    /// A client, in a group or in none.
    pub fn client(name: &str, group: Option<&str>) -> Self {
        Self { name: name.to_owned(), group: group.map(str::to_owned), hosts: Vec::new() }
    }

    /// A server known as `localhost` and `127.0.0.1`.
    pub fn loopback(name: &str) -> Self {
        let hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        Self { name: name.to_owned(), group: None, hosts }
    }
}
