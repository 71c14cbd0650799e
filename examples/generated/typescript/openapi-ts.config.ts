import { defineConfig } from "@hey-api/openapi-ts";

export default defineConfig({
  input: "../../../openapi.json",
  output: { path: "src/hey-api", importFileExtension: ".js" },
  plugins: ["@hey-api/client-fetch", "@hey-api/typescript", "@hey-api/sdk"],
});
