// An OpenID provider for the tests of the login: the certified one of npm's oidc-provider, with its
// own login and consent forms. Every user name is accepted, and is the account's subject. Argument:
// the client's redirect address. Prints its issuer once it listens.
import { createServer } from "node:http";
import { randomBytes } from "node:crypto";
import Provider from "oidc-provider";

const redirect = process.argv[2];
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "shiftwork",
        client_secret: "the-clients-secret",
        redirect_uris: [redirect],
      },
    ],
    cookies: { keys: [randomBytes(16).toString("hex")] },
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
      return {
        accountId: name,
        claims: async () => ({
          sub: name,
          preferred_username: name,
          email: `${name}@lab.test`,
          email_verified: true,
          groups: name === "olga" ? ["ops"] : [],
        }),
      };
    },
  });
  provider.on("server_error", (_, error) => console.error(error));
  server.on("request", provider.callback());
  console.log(issuer);
});
