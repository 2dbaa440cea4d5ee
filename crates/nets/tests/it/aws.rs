//! AWS's plugin against moto, which others wrote to stand in for it.

mod foreign;
mod peerings;
mod proxy;
mod trouble;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tarbet_nets::cloud::{Cloud, MemoryCloud, NewGateway, NewResource};
use tarbet_nets::clouds::auth::Authorize as _;
use tarbet_nets::clouds::aws::sigv4::Signer;
use tarbet_nets::clouds::aws::{Aws, AwsConfig, Environment};
use tarbet_nets::controller::RemoteController;
use tarbet_nets::error::Error;
use tarbet_nets::model::{Deployment, Direction, Rule};
use tarbet_testbed::{Folder, Lease, Process, Program, vendor_python};

use super::bed::{self, Listening, Running};
use super::sim::SimClock;
use proxy::Proxy;

const REGIONS: [&str; 2] = ["us-east-1", "us-west-2"];

fn keys() -> Environment {
    let variables = BTreeMap::from([
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        ("AWS_SESSION_TOKEN", "session/token=="),
    ]);
    Environment::read(|name| variables.get(name).map(ToString::to_string))
}

/// moto, a proxy that can lose its answers, and an orchestrator.
struct Bed {
    proxy: Proxy,
    controller: Arc<RemoteController>,
    clock: SimClock,
    gcp: Arc<MemoryCloud>,
    running: Running,
    _listening: Vec<Listening>,
    _moto: Process,
    _folder: Folder,
    _ports: Lease,
}

impl Bed {
    async fn start() -> Self {
        let ports = Lease::block(5).unwrap();
        let folder = Folder::new("moto").unwrap();
        let port = ports.port(4);
        let program = Program::new(vendor_python("aws").await.unwrap()).args([
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            &port.to_string(),
        ]);
        let mut moto = Process::start(&folder, "moto", program).unwrap();
        let url = format!("http://127.0.0.1:{port}");
        moto.ready(Duration::from_mins(2), || async { reqwest::get(format!("{url}/moto-api/")).await })
            .await
            .unwrap();
        let proxy = Proxy::start(url.clone()).await;
        let controller = Arc::new(RemoteController::new("127.0.0.1", ports.port(1)).unwrap());
        let clock = SimClock::default();
        // The orchestrator's own questions go past the proxy.
        let served = Arc::new(open(&url, &controller, &clock));
        let gcp = Arc::new(MemoryCloud::new("gcp", controller.clone()));
        let at = bed::serve(tarbet_nets::cloud::serve(served, "aws")).await;
        let gcp_at = bed::serve(tarbet_nets::cloud::serve(gcp.clone(), "gcp")).await;
        let config = json!({
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": { "host": "127.0.0.1", "port": ports.port(2) },
            "kvStore": { "host": "127.0.0.1", "port": ports.port(3) },
            "cloudPlugins": [
                { "name": "aws", "host": "127.0.0.1", "port": at.address.port() },
                { "name": "gcp", "host": "127.0.0.1", "port": gcp_at.address.port() },
            ],
            "namespaces": {
                "default": [{ "name": "aws", "deployment": "123456789012" }, { "name": "gcp", "deployment": "projects/p" }],
                "other": [{ "name": "aws", "deployment": "123456789012" }],
            },
            "spaceRefresh": "0s",
        });
        let running = bed::orchestrator(&serde_json::from_value(config).unwrap(), &bed::memory().await).await;
        Self {
            proxy,
            controller,
            clock,
            gcp,
            running,
            _listening: vec![at, gcp_at],
            _moto: moto,
            _folder: folder,
            _ports: ports,
        }
    }

    fn aws(&self) -> Aws {
        open(&self.proxy.url, &self.controller, &self.clock)
    }
}

fn open(url: &str, controller: &Arc<RemoteController>, clock: &SimClock) -> Aws {
    let config = AwsConfig {
        endpoint: Some(url.into()),
        regions: REGIONS.map(str::to_owned).to_vec(),
        ..AwsConfig::default()
    };
    Aws::open("aws", &config, keys(), controller.clone(), Arc::new(clock.clone())).unwrap()
}

fn new_machine(namespace: &str, name: &str, region: &str) -> NewResource {
    NewResource {
        deployment: Deployment { id: "123456789012".into(), namespace: namespace.into() },
        name: name.into(),
        description: json!({ "Region": region, "ImageId": "ami-12c6146b", "InstanceType": "t3.micro" })
            .to_string(),
    }
}

fn rule(name: &str, direction: Direction, port: i32, target: &str) -> Rule {
    Rule {
        name: name.into(),
        direction,
        src_port: -1,
        dst_port: port,
        protocol: 6,
        targets: vec![target.into()],
        tags: vec![target.into()],
    }
}

/// One step of a life; each may be made again. `uris` are the two machines once they are there.
async fn step(number: usize, aws: &Aws, uris: &mut Vec<(String, String)>) -> Result<(), Error> {
    match number {
        0 | 1 => {
            let (namespace, name, region) =
                if number == 0 { ("default", "vm1", REGIONS[0]) } else { ("other", "vm2", REGIONS[1]) };
            let made = aws.create_resource(new_machine(namespace, name, region)).await?;
            uris.truncate(number);
            uris.push((made.uri, made.ip));
            Ok(())
        }
        2 => {
            let rules = vec![
                rule("far", Direction::Inbound, 443, &uris[1].1),
                // The same permission by another name.
                rule("also", Direction::Inbound, 443, &uris[1].1),
                rule("out", Direction::Outbound, -1, &uris[1].1),
            ];
            aws.add_rules("default", &uris[0].0, rules).await
        }
        3 => aws.delete_rules("default", &uris[0].0, vec!["far".into()]).await,
        4 => aws.delete_rules("default", &uris[0].0, vec!["also".into(), "out".into()]).await,
        _ => {
            let (namespace, uri) = if number == 5 { ("default", &uris[0].0) } else { ("other", &uris[1].0) };
            match aws.delete_resource(namespace, uri).await {
                Err(error) if error.is_not_found() => Ok(()),
                result => result,
            }
        }
    }
}

#[tokio::test]
async fn a_whole_life_in_aws_cut_off_after_every_change() {
    let bed = Bed::start().await;
    let mut uris = Vec::new();
    let mut crashes = 0;
    // Each change is carried out once with nobody left to hear of it.
    bed.proxy.cut_each_change();
    for number in 0..7 {
        loop {
            let aws = bed.aws();
            tokio::select! {
                () = bed.proxy.cut() => crashes += 1,
                result = step(number, &aws, &mut uris) => {
                    result.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
                    break;
                }
            }
        }
        let aws = bed.aws();
        match number {
            1 => assert_eq!(aws.list_resources("").await.unwrap().len(), 2, "each was made once"),
            2 => {
                assert_eq!(aws.permit_list("default", &uris[0].0).await.unwrap().len(), 3);
                assert_eq!(aws.drift("", false).await.unwrap(), Vec::<String>::new());
                let foreign = aws.permit_list("other", &uris[0].0).await.unwrap_err();
                assert!(foreign.to_string().contains("does not belong"), "{foreign}");
                // Done again, nothing changes.
                bed.proxy.begin();
                for number in 0..3 {
                    step(number, &aws, &mut uris).await.unwrap();
                }
                assert_eq!(bed.proxy.changes(), Vec::<String>::new());
            }
            3 => {
                let left = aws.permit_list("default", &uris[0].0).await.unwrap();
                assert_eq!(left.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["also", "out"]);
                assert_eq!(
                    aws.drift("", false).await.unwrap(),
                    Vec::<String>::new(),
                    "the permission stays for the other rule"
                );
            }
            _ => {}
        }
    }
    assert!(crashes > 15, "only {crashes}");
    let aws = bed.aws();
    assert!(aws.list_resources("").await.unwrap().is_empty());
    let places = ["default", "other"]
        .map(|namespace| Deployment { id: "123456789012".into(), namespace: namespace.into() });
    assert!(aws.used_spaces(&places).await.unwrap().is_empty(), "no network is left");

    // What AWS cannot do is refused before it is asked.
    bed.proxy.begin();
    let refused = aws
        .add_rules(
            "default",
            &uris[0].0,
            vec![Rule { src_port: 5, ..rule("r", Direction::Inbound, 1, "10.0.0.1") }],
        )
        .await;
    assert!(refused.unwrap_err().to_string().contains("src_port"));
    assert!(bed.proxy.actions().is_empty());
    tarbet_testbed::verified("changes in AWS after which a plugin is cut off: it ends as wanted", crashes);
}

#[tokio::test]
async fn what_others_permit_by_group_or_list_is_found_and_taken_back() {
    let bed = Bed::start().await;
    let aws = bed.aws();
    let made = aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    aws.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, 443, "10.0.0.9/32")])
        .await
        .unwrap();
    assert_eq!(aws.drift("default", false).await.unwrap(), Vec::<String>::new());
    // Somebody opens it with AWS's own tools: to whoever is in the group, and to a list of prefixes.
    let script = "
import boto3, sys
ec2 = boto3.client('ec2', region_name='us-east-1', endpoint_url=sys.argv[1], aws_access_key_id='a', aws_secret_access_key='b')
group = [g for g in ec2.describe_security_groups()['SecurityGroups'] if g['GroupName'] == 'para-default-vm1-sg'][0]
plist = ec2.create_managed_prefix_list(PrefixListName='p', MaxEntries=1, AddressFamily='IPv4', Entries=[{'Cidr': '198.51.100.0/24'}])
permission = {'IpProtocol': 'tcp', 'FromPort': 22, 'ToPort': 22}
for target in [{'UserIdGroupPairs': [{'GroupId': group['GroupId']}]}, {'PrefixListIds': [{'PrefixListId': plist['PrefixList']['PrefixListId']}]}]:
    ec2.authorize_security_group_ingress(GroupId=group['GroupId'], IpPermissions=[permission | target])
";
    let output = tokio::process::Command::new(vendor_python("aws").await.unwrap())
        .args(["-c", script, &bed.proxy.url])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = aws.drift("default", true).await.unwrap();
    assert_eq!(found, ["2 permissions of vm1 differ from its rules"]);
    assert_eq!(aws.drift("default", false).await.unwrap(), Vec::<String>::new());
    assert_eq!(aws.permit_list("default", &made.uri).await.unwrap().len(), 1);
}

/// botocore, AWS's own, signs the same request to the same signature.
#[tokio::test]
async fn botocore_signs_alike() {
    let clock = SimClock::default();
    let signer = Signer::new(keys(), "us-east-1", "ec2", Arc::new(clock));
    let url = "http://127.0.0.1:5000/a%20path/x?b=2&a=1%202&c=%C3%BC";
    let body = "Action=DescribeVpcs&Version=2016-11-15&Filter.1.Value.1=a%2Fb";
    let kind = "application/x-www-form-urlencoded";
    let mut request =
        reqwest::Client::new().post(url).header("content-type", kind).body(body).build().unwrap();
    signer.authorize(&mut request).await.unwrap();
    let ours = request.headers()["authorization"].to_str().unwrap().to_owned();
    let stamp = request.headers()["x-amz-date"].to_str().unwrap().to_owned();
    let script = "
import sys
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
url, body, kind, stamp = sys.argv[1:]
auth = SigV4Auth(Credentials('AKIDEXAMPLE', 'wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY', 'session/token=='), 'ec2', 'us-east-1')
request = AWSRequest('POST', url, data=body, headers={'Content-Type': kind})
request.context['timestamp'] = stamp
auth._modify_request_before_signing(request)
canonical = auth.canonical_request(request)
print(auth.signature(auth.string_to_sign(request, canonical), request))
print(canonical, file=sys.stderr)
";
    let output = tokio::process::Command::new(vendor_python("aws").await.unwrap())
        .args(["-c", script, url, body, kind, &stamp])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs = String::from_utf8(output.stdout).unwrap();
    assert!(
        ours.ends_with(&format!("Signature={}", theirs.trim())),
        "{ours}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn the_first_generation_is_served() {
    let bed = Bed::start().await;
    // Which its order keeps it from: said before anything is made.
    let deployment = Deployment { id: "123456789012".into(), namespace: "default".into() };
    let nameless = NewGateway { deployment, cloud: String::new(), bgp_addresses: vec![], space: None };
    let refused = bed.aws().create_gateway(nameless).await.unwrap_err();
    assert!(refused.to_string().contains("today's wire"), "{refused}");
    let new = new_machine("default", "vm1", REGIONS[0]);
    super::life::speaks_the_first_generation(bed.aws(), "aws", "123456789012/vm1", new, "10.0.0.9/32").await;
}
