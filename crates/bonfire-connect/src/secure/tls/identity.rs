//! What a process needs to set TLS up: a key pair that nobody else has, and that nobody is asked to trust.

use std::io;
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as provider,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConfig, ServerConnection};
use rustls::sign::CertifiedKey;
use rustls::{Connection, DigitallySignedStruct, SignatureScheme, version};

use crate::secure::handshake::Role;

/// Stands where TLS wants the name of a server. Nobody looks at it.
const NOBODY: &str = "bonfire.invalid";

/// The two ways in which a process takes part in TLS.
#[derive(Clone, Debug)]
pub struct Identity {
    connector: Arc<ClientConfig>,
    acceptor: Arc<ServerConfig>,
}

impl Identity {
    /// A new one, unlike any other.
    pub fn new() -> io::Result<Self> {
        let provider = Arc::new(provider::default_provider());
        let refused = |error: rustls::Error| io::Error::other(error);
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .map_err(|_| io::Error::other("the operating system has no random bytes"))?;
        let pair = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.as_ref().to_vec()));
        let key = provider.key_provider.load_private_key(pair).map_err(refused)?;
        let public =
            key.public_key().ok_or_else(|| io::Error::other("the key has no public half"))?;
        let public = CertificateDer::from(public.to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![public], key));
        Ok(Self {
            connector: Arc::new(connector(&provider).map_err(refused)?),
            acceptor: Arc::new(acceptor(&provider, certified).map_err(refused)?),
        })
    }

    pub(super) fn connection(&self, role: Role) -> io::Result<Connection> {
        let connection = match role {
            Role::Connector => {
                let name = ServerName::try_from(NOBODY).expect("a name as in RFC 2606");
                ClientConnection::new(Arc::clone(&self.connector), name).map(Connection::from)
            }
            Role::Acceptor => {
                ServerConnection::new(Arc::clone(&self.acceptor)).map(Connection::from)
            }
        };
        connection.map_err(io::Error::other)
    }
}

fn connector(provider: &Arc<CryptoProvider>) -> Result<ClientConfig, rustls::Error> {
    let verifier = AcceptAnyKey { algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // A resumed connection would be one more thing to think about, and none is ever resumed.
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

fn acceptor(
    provider: &Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Accepts any raw public key; the token handshake authenticates the peer.
#[derive(Debug)]
struct AcceptAnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AcceptAnyKey {
    fn verify_server_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
