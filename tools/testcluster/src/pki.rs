//! The cluster's PKI: certificate authority, certificates, tokens and kubeconfigs.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::layout::{API_SERVICE, DOMAIN, node_name};
use super::state::Cluster;
use knit_dev::process;

/// User names that the built-in role bindings of Kubernetes refer to.
pub const ADMIN: &str = "admin";
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub const SCHEDULER: &str = "system:kube-scheduler";
pub const PROXY: &str = "system:kube-proxy";

/// The user name of a node's kubelet.
pub fn node_user(node: u8) -> String {
    format!("system:node:{}", node_name(node))
}

/// A file of the PKI.
pub fn file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.folder("pki").join(name)
}

/// The kubeconfig of a user.
pub fn kubeconfig(cluster: &Cluster, user: &str) -> PathBuf {
    match user {
        ADMIN => cluster.kubeconfig(),
        _ => file(cluster, &format!("{}.kubeconfig", user.replace(':', "-"))),
    }
}

/// Creates all pki, certificates, tokens and kubeconfigs of the cluster.
pub fn create(cluster: &Cluster) -> Result<()> {
    let folder = cluster.folder("pki");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    let authority = Authority::create(&folder)?;
    let addresses = cluster.addresses();
    let names = format!(
        "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
         DNS:kubernetes.default.svc.{DOMAIN},IP:127.0.0.1,IP:{API_SERVICE},IP:{},IP:{}",
        addresses.control_plane(),
        addresses.control_plane_v6()
    );
    authority.sign("apiserver", "/CN=kube-apiserver", &[format!("subjectAltName={names}")])?;
    // The client certificate of the API server for kubelets and aggregated APIs.
    authority.sign(
        "client",
        "/O=system:masters/CN=kube-apiserver",
        &["extendedKeyUsage=clientAuth".to_owned()],
    )?;
    // Not `genpkey`: the API server reads the public key only from this older format.
    let mut key = Command::new("openssl");
    key.args(["ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out"]);
    process::output(key.arg(folder.join("service-accounts.key")))?;
    create_users(cluster)
}

fn create_users(cluster: &Cluster) -> Result<()> {
    let mut users = vec![
        (ADMIN.to_owned(), "system:masters"),
        (CONTROLLER_MANAGER.to_owned(), ""),
        (SCHEDULER.to_owned(), ""),
        (PROXY.to_owned(), ""),
    ];
    users.extend(cluster.node_numbers().map(|node| (node_user(node), "system:nodes")));
    let authority = fs::read_to_string(file(cluster, "ca.crt")).context("cannot read the CA certificate")?;
    let mut tokens = String::new();
    for (user, group) in &users {
        let token = random_token()?;
        tokens.push_str(&format!("{token},{user},{user},\"{group}\"\n"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": cluster.names().name(),
            "clusters": [{"name": "knit", "cluster": {
                "server": cluster.addresses().api(),
                "certificate-authority-data": base64(authority.as_bytes()),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": cluster.names().name(), "context": {"cluster": "knit", "user": user}}],
        });
        write_private(&kubeconfig(cluster, user), &serde_json::to_vec_pretty(&config)?)?;
    }
    write_private(&file(cluster, "tokens.csv"), tokens.as_bytes())
}

struct Authority<'a> {
    folder: &'a Path,
}

impl<'a> Authority<'a> {
    fn create(folder: &'a Path) -> Result<Self> {
        // Debian's default configuration would mark every certificate as a CA.
        fs::write(folder.join("openssl.cnf"), "[req]\ndistinguished_name = dn\n[dn]\n")?;
        let authority = Self { folder };
        let mut openssl = authority.request("ca", "/CN=knit-cluster");
        openssl.args([
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=keyCertSign,cRLSign",
        ]);
        process::output(openssl.args(["-addext", "subjectKeyIdentifier=hash"]))?;
        Ok(authority)
    }

    /// Creates `<name>.key` and `<name>.crt`.
    fn sign(&self, name: &str, subject: &str, extensions: &[String]) -> Result<()> {
        let mut openssl = self.request(name, subject);
        openssl.arg("-CA").arg(self.folder.join("ca.crt")).arg("-CAkey").arg(self.folder.join("ca.key"));
        for extension in extensions {
            openssl.args(["-addext", extension]);
        }
        process::output(&mut openssl)?;
        Ok(())
    }

    fn request(&self, name: &str, subject: &str) -> Command {
        let mut request = Command::new("openssl");
        request.args(["req", "-x509", "-batch", "-nodes", "-days", "3650", "-newkey", "ec", "-pkeyopt"]);
        request.args(["ec_paramgen_curve:prime256v1", "-subj", subject]);
        request.arg("-config").arg(self.folder.join("openssl.cnf"));
        request.arg("-keyout").arg(self.folder.join(format!("{name}.key")));
        request.arg("-out").arg(self.folder.join(format!("{name}.crt")));
        request
    }
}

fn write_private(path: &Path, contents: &[u8]) -> Result<()> {
    fs::write(path, contents)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .enumerate()
            .fold(0_u32, |group, (at, byte)| group | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_what_is_not_a_multiple_of_three() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foo"), "Zm9v");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
