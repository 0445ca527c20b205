// An OpenID provider for the tests of the login: the certified one of npm's oidc-provider, with its
// own login and consent forms. Argument: the clients' redirect address. Prints its issuer once it
// listens, and then "done" for each order, a line of JSON on its standard input:
// {account, groups} makes or changes an account, {disable: NAME} disables one, and {rotate: true}
// replaces the key that it signs with.
import { createServer } from "node:http";
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import Provider from "oidc-provider";

const redirect = process.argv[2];
const cookies = { keys: [randomBytes(16).toString("hex")] };
const accounts = new Map();
const disabled = new Set();

const client = (name) => ({
  client_id: name,
  client_secret: "the-clients-secret",
  redirect_uris: [redirect],
});

function freshProvider(issuer) {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const key = privateKey.export({ format: "jwk" });
  const provider = new Provider(issuer, {
    clients: [client("shiftwork"), client("another-program")],
    cookies,
    jwks: { keys: [{ ...key, use: "sig", alg: "RS256", kid: randomBytes(8).toString("hex") }] },
    claims: {
      openid: ["sub"],
      profile: ["preferred_username"],
      email: ["email", "email_verified"],
      groups: ["groups"],
    },
    scopes: ["openid", "profile", "email", "groups"],
    pkce: { required: () => true },
    features: { devInteractions: { enabled: true } },
    async findAccount(_, name) {
      if (disabled.has(name) || !accounts.has(name)) return undefined;
      return {
        accountId: name,
        claims: async () => ({
          sub: name,
          preferred_username: name,
          email: `${name}@lab.test`,
          email_verified: true,
          groups: accounts.get(name),
        }),
      };
    },
  });
  provider.on("server_error", (_, error) => console.error(error));
  return provider.callback();
}

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  let handle = freshProvider(issuer);
  server.on("request", (request, reply) => handle(request, reply));
  createInterface({ input: process.stdin }).on("line", (line) => {
    const order = JSON.parse(line);
    if (order.account) accounts.set(order.account, order.groups);
    if (order.disable) disabled.add(order.disable);
    // Sessions and codes are kept by the library's storage, which all providers of a process share.
    if (order.rotate) handle = freshProvider(issuer);
    console.log("done");
  });
  console.log(issuer);
});
